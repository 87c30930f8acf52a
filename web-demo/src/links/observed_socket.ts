/**
 * Looks at the frames of the official client, which tells nothing of its sockets: a WebSocket that reads along and
 * changes nothing. Knows the JSON frames as far as it counts them.
 */
import type { TraceEvent, TraceListener } from "../protobuf-client/index.js";

/** A query parameter of the client URL, which the gateway ignores; it tells whose socket it is. */
const OBSERVER_PARAMETER = "observer";

const observers = new Map<string, Observer>();

/** Lets `trace` hear of all sockets that are opened with `url` from now on; returns the URL to use. */
export function observe(url: string, name: string, trace: TraceListener): string {
  if (globalThis.WebSocket !== ObservedSocket) globalThis.WebSocket = ObservedSocket;
  const observed = new URL(url);
  observed.searchParams.set(OBSERVER_PARAMETER, name);
  if (!observers.has(name)) observers.set(name, new Observer(trace));
  return observed.href;
}

class ObservedSocket extends WebSocket {
  readonly #observer: Observer | undefined;

  constructor(url: string | URL, protocols?: string | string[]) {
    super(url, protocols);
    const { searchParams } = new URL(url);
    this.#observer = observers.get(searchParams.get(OBSERVER_PARAMETER) ?? "");
    const observer = this.#observer;
    if (observer === undefined) return;
    this.addEventListener("open", () => observer.opened(searchParams.has("awps_connection_id")));
    this.addEventListener("close", ({ code }) => observer.closed(code));
    this.addEventListener("message", ({ data }) => observer.heard(data));
  }

  override send(data: string | BufferSource | Blob): void {
    super.send(data);
    if (this.readyState === WebSocket.OPEN) this.#observer?.said(data);
  }
}

/** The frames of one client, over all its sockets. */
class Observer {
  readonly #trace: TraceListener;
  /** Sent in this session, by ack id. */
  readonly #sent = new Set<number>();
  #largestSequenceId = 0;
  #isResuming = false;

  constructor(trace: TraceListener) {
    this.#trace = trace;
  }

  opened(resuming: boolean): void {
    this.#isResuming = resuming;
    this.#trace({ kind: "opened", resuming });
  }

  closed(code: number): void {
    this.#isResuming = false;
    this.#trace({ kind: "closed", code });
  }

  said(data: unknown): void {
    const frame = parse(data);
    if (frame?.type === "sequenceAck") this.#trace({ kind: "sequenceAck", sequenceId: Number(frame.sequenceId) });
    if (frame?.type !== "sendToGroup" || typeof frame.ackId !== "number") return;
    const { ackId, data: content } = frame;
    const again = this.#sent.has(ackId);
    this.#sent.add(ackId);
    this.#trace({ kind: "publish", ackId, again, group: String(frame.group), content });
  }

  heard(data: unknown): void {
    const frame = parse(data);
    if (frame === undefined) return;
    if (frame.type === "system" && frame.event === "connected") return this.#connected(String(frame.connectionId));
    if (this.#isResuming) this.#trace({ kind: "resumed" });
    this.#isResuming = false;
    if (frame.type === "ack") {
      const error = frame.error as { name?: string } | undefined;
      const outcome = frame.success === true ? "success" : error?.name === "Duplicate" ? "duplicate" : "refused";
      if (outcome !== "refused") this.#sent.delete(Number(frame.ackId));
      this.#trace({ kind: "ack", ackId: Number(frame.ackId), outcome } satisfies TraceEvent);
    }
    if (frame.type === "message" && typeof frame.sequenceId === "number") {
      const { sequenceId, data: content } = frame;
      const repeated = sequenceId <= this.#largestSequenceId;
      this.#largestSequenceId = Math.max(this.#largestSequenceId, sequenceId);
      this.#trace({ kind: "message", sequenceId, repeated, group: String(frame.group), content });
    }
  }

  #connected(connectionId: string): void {
    this.#sent.clear();
    this.#largestSequenceId = 0;
    this.#trace({ kind: "connected", connectionId });
  }
}

function parse(data: unknown): Record<string, unknown> | undefined {
  if (typeof data !== "string") return undefined;
  try {
    return JSON.parse(data);
  } catch {
    return undefined;
  }
}
