/**
 * Why a request did not succeed, and whether it may have taken effect.
 */

/** The gateway refused the request; it had no effect. */
export class RefusedError extends Error {
  override readonly name = "RefusedError";

  /** `reason` is the error's name on the wire, such as `Forbidden`. */
  constructor(
    readonly reason: string,
    message: string,
  ) {
    super(message);
  }
}

/** The session ended before the request was acknowledged. */
export class SessionLostError extends Error {
  override readonly name = "SessionLostError";

  constructor() {
    super("the session ended before the request was acknowledged: it may have taken effect or not");
  }
}

/** More is waiting for acknowledgements than the client keeps; the request was not taken. */
export class OutboxFullError extends Error {
  override readonly name = "OutboxFullError";

  constructor() {
    super("too many requests wait for their acknowledgements");
  }
}

/** The client was stopped before the request was acknowledged. */
export class StoppedError extends Error {
  override readonly name = "StoppedError";

  constructor() {
    super("the client was stopped");
  }
}
