/**
 * A client of `protobuf.reliable.webpubsub.azure.v1` whose session outlives its sockets and its page.
 *
 * Publishing: a request is kept in the tab's storage, then sent; it is sent again under the same ack id after each
 * drop until an ack settles it. Subscribing: each message is handed over once, in order, then its sequence id is kept,
 * then acknowledged. A dropped socket is resumed with connection id and reconnection token until the gateway takes it
 * or refuses it with close code 1008, which alone ends a session from the other side.
 */
import {
  decode,
  decodeRequest,
  encodePing,
  encodeRequest,
  encodeSequenceAck,
  type Heard,
  type Payload,
  type Request,
  SUBPROTOCOL,
} from "./codec.js";
import { RefusedError, SessionLostError, StoppedError } from "./errors.js";
import { KeptSession } from "./kept_session.js";
import { TabOwnership } from "./tab_ownership.js";
import type { TraceEvent, TraceListener } from "./trace.js";

/** Sequence ids are acknowledged after this many messages ... */
const SEQUENCE_ACK_MESSAGES = 64;
/** ... or this long after the first of them. */
const SEQUENCE_ACK_DELAY_MS = 500;

/** A socket on which nothing is heard for so long is pinged ... */
const PING_AFTER_MS = 10_000;
/** ... and given up when nothing is heard for so long after that. */
const PONG_WITHIN_MS = 10_000;

/** Pauses between tries to connect: the first one is at once. */
const RETRY_PAUSES_MS = [0, 100, 250, 500, 1_000];

/** What the gateway could not store is sent again after this pause. */
const REFUSED_FOR_NOW_PAUSE_MS = 1_000;

/** The close code that says that the session is over. */
const CLOSE_POLICY_VIOLATION = 1008;
/** The close code with which a client ends its session. */
const CLOSE_NORMAL = 1000;
/** Stands for an end without a close frame. */
const CLOSE_ABNORMAL = 1006;

export interface GroupMessage {
  group: string;
  payload: Payload;
  sequenceId: number;
}

/** How a request was settled. */
export interface Settled {
  ackId: number;
  /** The gateway had executed it before: an earlier ack got lost. */
  isDuplicate: boolean;
}

/** What a client found when it started. */
export interface Started {
  /** The same session as before the page was loaded. */
  isResumed: boolean;
  /** Requests from before that are being sent again. */
  pending: { ackId: number; request: Request; settled: Promise<Settled> }[];
}

export interface ClientOptions {
  /** Names the session within the tab: no two clients of a page may share it. */
  name: string;
  /** A client URL with a fresh access token, for a new session. */
  getUrl(): Promise<string>;
  /** Gets each message once. What it changes in the application's state is kept together with the message's id. */
  onMessage(message: GroupMessage): void;
  /** The application's state, to be kept with the session; asked for after each message and each request. */
  keepApplication?(): string;
  /** Gets the state that was kept with the tab's session, before anything else happens. */
  restoreApplication?(application: string): void;
  /** A new session replaced one that the gateway refused. */
  onSessionLost?(): void;
  trace?: TraceListener;
  storage?: Storage;
  locks?: LockManager | undefined;
  openSocket?(url: string, subprotocol: string): WebSocket;
}

interface Waiting {
  promise: Promise<Settled>;
  resolve(settled: Settled): void;
  reject(error: Error): void;
}

export class ProtobufClient {
  readonly #options: ClientOptions;
  readonly #storage: Storage;
  readonly #ownership: TabOwnership;
  readonly #waiting = new Map<number, Waiting>();
  /** Ack ids that were handed to a socket, of this page or, perhaps, of the one before. */
  readonly #sent = new Set<number>();
  #session: KeptSession | undefined;
  /** Open, and of the session. */
  #socket: WebSocket | undefined;
  /** The session that the gateway refused, until a new one replaces it. */
  #lost: KeptSession | undefined;
  /** Gives up the socket at once, open or not. */
  #drop: (() => void) | undefined;
  #isStopped = false;
  /** Ends the pause before the next try. */
  #hurry: (() => void) | undefined;
  #lastHeard = 0;
  #pingedAt: number | undefined;
  #sequenceAckTimer: ReturnType<typeof setTimeout> | undefined;
  #unacknowledged = 0;
  /** Requests that the gateway could not store, until the timer sends them again. */
  readonly #refusedForNow = new Set<number>();
  #refusedTimer: ReturnType<typeof setTimeout> | undefined;
  #started = deferred<void>();

  constructor(options: ClientOptions) {
    this.#options = options;
    this.#storage = options.storage ?? sessionStorage;
    this.#ownership = new TabOwnership("locks" in options ? options.locks : navigator.locks);
  }

  get connectionId(): string | undefined {
    return this.#session?.connectionId;
  }

  /** Requests that wait for their acks. */
  get pendingRequests(): number {
    return this.#session?.requests.size ?? 0;
  }

  /** Takes up the tab's session, or opens a new one, and keeps it until {@link stop}. */
  async start(): Promise<Started> {
    const kept = KeptSession.load(this.#storage, this.#options.name);
    if (kept !== undefined && (await this.#ownership.claim(kept.connectionId))) {
      this.#session = kept;
      this.#options.restoreApplication?.(kept.application);
    } else {
      // Another tab has the session and its requests; this one holds a copy.
      KeptSession.forget(this.#storage, this.#options.name);
    }
    const pending: Started["pending"] = [];
    for (const [ackId, frame] of this.#session?.requests ?? []) {
      const decoded = decodeRequest(frame);
      if (decoded === undefined) continue;
      this.#sent.add(ackId);
      pending.push({ ackId, request: decoded.request, settled: this.#wait(ackId).promise });
    }
    addEventListener("online", this.#onNetworkChange);
    addEventListener("offline", this.#onNetworkChange);
    const monitor = setInterval(() => this.#checkAlive(), 1_000);
    void this.#run().finally(() => {
      clearInterval(monitor);
      removeEventListener("online", this.#onNetworkChange);
      removeEventListener("offline", this.#onNetworkChange);
    });
    const resumed = this.#session;
    await this.#started.promise;
    return { isResumed: resumed !== undefined && resumed === this.#session, pending };
  }

  join(group: string): Promise<Settled> {
    return this.#request({ kind: "join", group });
  }

  leave(group: string): Promise<Settled> {
    return this.#request({ kind: "leave", group });
  }

  /** Publishes to a group. Resolves when the gateway acknowledged it, however many sockets that takes. */
  send(group: string, payload: Payload, { noEcho = false } = {}): Promise<Settled> {
    return this.#request({ kind: "send", group, payload, noEcho });
  }

  /** Ends the session. */
  stop(): void {
    this.#isStopped = true;
    if (this.#socket === undefined) this.#drop?.();
    else this.#socket.close(CLOSE_NORMAL);
    this.#hurry?.();
    this.#abandon(() => new StoppedError());
    this.#started.reject(new StoppedError());
    KeptSession.forget(this.#storage, this.#options.name);
    this.#ownership.release();
  }

  async #request(request: Request): Promise<Settled> {
    if (this.#isStopped || this.#session === undefined) throw new StoppedError();
    const session = this.#session;
    const ackId = session.addRequest((id) => encodeRequest(id, request), this.#application);
    const { promise } = this.#wait(ackId);
    this.#sendRequest(ackId);
    return promise;
  }

  get #application(): string {
    return this.#options.keepApplication?.() ?? "";
  }

  #wait(ackId: number): Waiting {
    const waiting = deferred<Settled>();
    this.#waiting.set(ackId, waiting);
    return waiting;
  }

  /** Opens sockets until the client is stopped. */
  async #run(): Promise<void> {
    let tries = 0;
    while (!this.#isStopped) {
      await this.#pause(RETRY_PAUSES_MS[Math.min(tries, RETRY_PAUSES_MS.length - 1)] ?? 0);
      if (this.#isStopped) return;
      tries++;
      const isResuming = this.#session !== undefined;
      const url = this.#session?.resumeUrl ?? (await this.#options.getUrl().catch(() => undefined));
      if (url === undefined || this.#isStopped) continue;
      const code = await this.#serve(url, isResuming, () => (tries = 0));
      if (code === CLOSE_POLICY_VIOLATION && this.#session !== undefined) this.#lose();
    }
  }

  /** One socket's life, up to its close code. `onHeard` tells that it is of use. */
  #serve(url: string, isResuming: boolean, onHeard: () => void): Promise<number> {
    const open = this.#options.openSocket ?? ((address, subprotocol) => new WebSocket(address, subprotocol));
    let socket: WebSocket;
    try {
      socket = open(url, SUBPROTOCOL);
    } catch (error) {
      // The browser would not have it; the next try may have another URL.
      reportError(error);
      return Promise.resolve(CLOSE_ABNORMAL);
    }
    socket.binaryType = "arraybuffer";
    this.#lastHeard = Date.now();
    this.#pingedAt = undefined;
    let isTaken = false;
    return new Promise((resolve) => {
      const end = (code: number) => {
        socket.onopen = socket.onmessage = socket.onclose = null;
        if (this.#socket === socket) this.#socket = undefined;
        this.#drop = undefined;
        this.#trace({ kind: "closed", code });
        resolve(code);
      };
      // A socket without a network would take its time to close.
      this.#drop = () => {
        end(CLOSE_ABNORMAL);
        socket.close();
      };
      socket.onclose = ({ code }) => end(code);
      socket.onopen = () => {
        this.#trace({ kind: "opened", resuming: isResuming });
        if (!isResuming) return;
        this.#attach(socket);
        // Its answer tells that the session is there, also when nothing else is to be said.
        this.#ping();
      };
      socket.onmessage = ({ data }: MessageEvent<ArrayBuffer | string>) => {
        onHeard();
        this.#lastHeard = Date.now();
        this.#pingedAt = undefined;
        const heard = tryDecode(data);
        if (heard === undefined) return this.#drop?.();
        if (isResuming && !isTaken && heard.kind !== "connected") {
          isTaken = true;
          this.#trace({ kind: "resumed" });
          this.#started.resolve();
        }
        this.#hear(socket, url, heard);
      };
    });
  }

  /** The socket is of the session: what was not acknowledged goes out again. */
  #attach(socket: WebSocket): void {
    this.#socket = socket;
    this.#forgetRefused();
    for (const ackId of this.#session?.requests.keys() ?? []) this.#sendRequest(ackId);
  }

  #sendRequest(ackId: number): void {
    const frame = this.#session?.requests.get(ackId);
    if (this.#socket?.readyState !== WebSocket.OPEN || frame === undefined) return;
    const again = this.#sent.has(ackId);
    this.#sent.add(ackId);
    this.#socket.send(frame);
    const request = decodeRequest(frame)?.request;
    if (request?.kind === "send") {
      this.#trace({ kind: "publish", ackId, again, group: request.group, content: contentOf(request.payload) });
    }
  }

  #hear(socket: WebSocket, url: string, heard: Heard): void {
    switch (heard.kind) {
      case "connected":
        this.#connected(socket, url, heard.connectionId, heard.reconnectionToken);
        break;
      case "ack":
        this.#acknowledged(heard);
        break;
      case "message":
        this.#deliver(heard);
        break;
      case "disconnected":
      case "other":
        break;
    }
  }

  #connected(socket: WebSocket, url: string, connectionId: string, reconnectionToken: string): void {
    if (this.#session?.connectionId === connectionId) return this.#session.refresh(reconnectionToken);
    if (this.#session !== undefined) this.#lose();
    const { origin, pathname } = new URL(url);
    const application = this.#application;
    const opened = { connectionId, reconnectionToken, endpoint: `${origin}${pathname}`, application };
    void this.#ownership.claim(connectionId);
    const lost = this.#lost;
    this.#lost = undefined;
    this.#session = KeptSession.begin(this.#storage, this.#options.name, opened);
    this.#trace({ kind: "connected", connectionId });
    for (const group of lost?.groups ?? []) this.join(group).catch(reportError);
    this.#attach(socket);
    this.#started.resolve();
    if (lost !== undefined) this.#options.onSessionLost?.();
  }

  #lose(): void {
    this.#lost = this.#session;
    this.#session = undefined;
    this.#abandon(() => new SessionLostError());
    KeptSession.forget(this.#storage, this.#options.name);
    this.#ownership.release();
  }

  #abandon(reason: () => Error): void {
    for (const { reject } of this.#waiting.values()) reject(reason());
    this.#waiting.clear();
    this.#sent.clear();
    clearTimeout(this.#sequenceAckTimer);
    this.#sequenceAckTimer = undefined;
    this.#unacknowledged = 0;
    this.#forgetRefused();
  }

  #acknowledged({ ackId, success, error }: Heard & { kind: "ack" }): void {
    const isDuplicate = error?.name === "Duplicate";
    const outcome = success ? "success" : isDuplicate ? "duplicate" : "refused";
    this.#trace({ kind: "ack", ackId, outcome });
    if (outcome === "refused" && error?.name === "InternalServerError") {
      this.#refusedForNow.add(ackId);
      this.#refusedTimer ??= setTimeout(() => this.#sendRefused(), REFUSED_FOR_NOW_PAUSE_MS);
      return;
    }
    if (outcome !== "refused") this.#rememberGroup(ackId);
    this.#session?.removeRequest(ackId);
    this.#sent.delete(ackId);
    const waiting = this.#waiting.get(ackId);
    this.#waiting.delete(ackId);
    if (outcome === "refused") waiting?.reject(new RefusedError(error?.name ?? "", error?.message ?? ""));
    else waiting?.resolve({ ackId, isDuplicate });
  }

  /** Sends again what the gateway could not store, in order, and nothing else: each copy is answered too. */
  #sendRefused(): void {
    const refused = new Set(this.#refusedForNow);
    this.#forgetRefused();
    for (const ackId of this.#session?.requests.keys() ?? []) if (refused.has(ackId)) this.#sendRequest(ackId);
  }

  #forgetRefused(): void {
    clearTimeout(this.#refusedTimer);
    this.#refusedTimer = undefined;
    this.#refusedForNow.clear();
  }

  /** A new session will need the groups of this one. */
  #rememberGroup(ackId: number): void {
    const frame = this.#session?.requests.get(ackId);
    const request = frame && decodeRequest(frame)?.request;
    if (request === undefined || request.kind === "send") return;
    this.#session?.setGroup(request.group, request.kind === "join");
  }

  #deliver({ group, payload, sequenceId }: GroupMessage): void {
    const session = this.#session;
    if (session === undefined) return;
    const repeated = sequenceId <= session.largestSequenceId;
    this.#trace({ kind: "message", sequenceId, repeated, group, content: contentOf(payload) });
    if (!repeated) {
      try {
        this.#options.onMessage({ group, payload, sequenceId });
      } catch (error) {
        reportError(error);
      }
      session.delivered(sequenceId, this.#application);
    }
    this.#unacknowledged++;
    if (this.#unacknowledged >= SEQUENCE_ACK_MESSAGES) this.#acknowledgeSequence();
    else this.#sequenceAckTimer ??= setTimeout(() => this.#acknowledgeSequence(), SEQUENCE_ACK_DELAY_MS);
  }

  #acknowledgeSequence(): void {
    clearTimeout(this.#sequenceAckTimer);
    this.#sequenceAckTimer = undefined;
    this.#unacknowledged = 0;
    // What is not kept is not acknowledged either: a page that comes later shall get it.
    const sequenceId = this.#session?.keptSequenceId ?? 0;
    if (this.#socket?.readyState !== WebSocket.OPEN || sequenceId === 0) return;
    this.#socket.send(encodeSequenceAck(sequenceId));
    this.#trace({ kind: "sequenceAck", sequenceId });
  }

  readonly #onNetworkChange = (): void => {
    this.#hurry?.();
    this.#ping();
  };

  #ping(): void {
    if (this.#socket?.readyState !== WebSocket.OPEN || this.#pingedAt !== undefined) return;
    this.#pingedAt = Date.now();
    this.#socket.send(encodePing());
  }

  #checkAlive(): void {
    const now = Date.now();
    if (this.#pingedAt !== undefined && now - this.#pingedAt > PONG_WITHIN_MS) this.#drop?.();
    else if (now - this.#lastHeard > PING_AFTER_MS + PONG_WITHIN_MS && this.#socket === undefined) this.#drop?.();
    else if (now - this.#lastHeard > PING_AFTER_MS) this.#ping();
  }

  #pause(milliseconds: number): Promise<void> {
    if (milliseconds === 0) return Promise.resolve();
    return new Promise((resolve) => {
      const timer = setTimeout(() => this.#hurry?.(), milliseconds);
      this.#hurry = () => {
        clearTimeout(timer);
        this.#hurry = undefined;
        resolve();
      };
    });
  }

  #trace(event: TraceEvent): void {
    this.#options.trace?.(event);
  }
}

function tryDecode(data: ArrayBuffer | string): Heard | undefined {
  if (typeof data === "string") return undefined;
  try {
    return decode(new Uint8Array(data));
  } catch {
    return undefined;
  }
}

function contentOf(payload: Payload): unknown {
  switch (payload.kind) {
    case "text":
      return payload.text;
    case "json":
      return payload.json;
    case "binary":
    case "any":
      return payload.bytes;
  }
}

/** A promise that is settled from outside. What nobody waits for is no error. */
function deferred<T>() {
  let resolve!: (value: T) => void;
  let reject!: (error: Error) => void;
  const promise = new Promise<T>((onResolve, onReject) => {
    resolve = onResolve;
    reject = onReject;
  });
  promise.catch(() => {});
  return { promise, resolve, reject };
}
