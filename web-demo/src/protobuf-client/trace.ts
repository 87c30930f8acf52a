/**
 * What passes a client's sockets, as an onlooker is told of it. Knows no client: the lab describes the official
 * client's sockets in the same words.
 */

/** How an acknowledgement answered a request. */
export type AckOutcome = "success" | "duplicate" | "refused";

export type TraceEvent =
  /** A WebSocket opened; `resuming` when it asked for a session that exists. */
  | { kind: "opened"; resuming: boolean }
  /** The gateway said something on a socket that asked for a session: it took it up again. */
  | { kind: "resumed" }
  /** It closed; 1006 stands for an end without a close frame. */
  | { kind: "closed"; code: number }
  /** The gateway began a new session. */
  | { kind: "connected"; connectionId: string }
  /** A publish was handed to the socket; `again` when it had been before under the same ack id. */
  | { kind: "publish"; ackId: number; again: boolean; group: string; content: unknown }
  | { kind: "ack"; ackId: number; outcome: AckOutcome }
  /** A message arrived; `repeated` when the session had passed its sequence id already. */
  | { kind: "message"; sequenceId: number; repeated: boolean; group: string; content: unknown }
  | { kind: "sequenceAck"; sequenceId: number };

export type TraceListener = (event: TraceEvent) => void;
