/**
 * A session as a tab keeps it, so that it outlives the page: one record, and one entry for each request that is not
 * acknowledged yet. Knows the storage and its bounds, neither sockets nor who owns the session.
 *
 * Each change is in the storage before its effect leaves the page: a request before its frame is sent, the largest
 * sequence id before it is acknowledged. The application's state is written together with the largest sequence id, in
 * one entry, so that no reload can fall between a message and its effect. Where the storage is full, the session goes
 * on in memory: it takes no request, and what was not written goes with the next write that succeeds.
 */
import { OutboxFullError } from "./errors.js";

/** Requests that wait for their acks. Far below the ack ids that a gateway remembers. */
export const REQUESTS_MAX = 1_000;

/** Characters of all requests that wait; browsers give a tab 5 million and more. */
export const REQUEST_CHARACTERS_MAX = 2_000_000;

/**
 * How far ack ids jump when a session is taken up again. A browser that crashed may have sent more than its storage
 * remembers, and an ack id must never be used for another request.
 */
const RESUMED_ACK_IDS_STEP = 1_000_000;

/** What is written as one entry. */
interface SessionRecord {
  connectionId: string;
  reconnectionToken: string;
  /** The client URL without its query, which holds the access token. */
  endpoint: string;
  largestSequenceId: number;
  nextAckId: number;
  /** Groups that the client joined; a new session needs them again. */
  groups: string[];
  /** The application's state. */
  application: string;
}

export class KeptSession {
  readonly #storage: Storage;
  readonly #prefix: string;
  readonly #record: SessionRecord;
  /** Frames that wait for their acks, by ack id, in the order of sending. */
  readonly #requests = new Map<number, Uint8Array<ArrayBuffer>>();
  #characters = 0;
  /** The largest sequence id in the storage. */
  #keptSequenceId = 0;

  /** Begins to keep a new session in place of what was kept under `name`. */
  static begin(
    storage: Storage,
    name: string,
    opened: Pick<SessionRecord, "connectionId" | "reconnectionToken" | "endpoint" | "application">,
  ): KeptSession {
    KeptSession.forget(storage, name);
    const session = new KeptSession(storage, name, { ...opened, largestSequenceId: 0, nextAckId: 1, groups: [] });
    session.#trySave();
    return session;
  }

  /** What is kept under `name`, if that can be read. */
  static load(storage: Storage, name: string): KeptSession | undefined {
    const text = storage.getItem(`${prefixOf(name)}session`);
    const record = text === null ? undefined : parseRecord(text);
    if (record === undefined) return undefined;
    const session = new KeptSession(storage, name, record);
    for (const key of keysOf(storage, session.#prefix)) {
      const ackId = Number(key.slice(`${session.#prefix}request/`.length));
      if (!key.startsWith(`${session.#prefix}request/`) || !Number.isSafeInteger(ackId)) continue;
      const request = storage.getItem(key) ?? "";
      const frame = decodeBase64(request);
      if (frame === undefined) return undefined;
      session.#requests.set(ackId, frame);
      session.#characters += request.length;
    }
    const inOrder = [...session.#requests].sort(([one], [other]) => one - other);
    session.#requests.clear();
    for (const [ackId, frame] of inOrder) session.#requests.set(ackId, frame);
    const largest = inOrder.at(-1)?.[0] ?? 0;
    record.nextAckId = Math.max(record.nextAckId, largest + 1) + RESUMED_ACK_IDS_STEP;
    // If this is not written, nothing is sent with these ids either before a later write.
    session.#trySave();
    return session;
  }

  static forget(storage: Storage, name: string): void {
    for (const key of keysOf(storage, prefixOf(name))) storage.removeItem(key);
  }

  private constructor(storage: Storage, name: string, record: SessionRecord) {
    this.#storage = storage;
    this.#prefix = prefixOf(name);
    this.#record = record;
    this.#keptSequenceId = record.largestSequenceId;
  }

  get connectionId(): string {
    return this.#record.connectionId;
  }

  get largestSequenceId(): number {
    return this.#record.largestSequenceId;
  }

  /** The largest sequence id that a later page will know: what may be acknowledged. */
  get keptSequenceId(): number {
    return this.#keptSequenceId;
  }

  get groups(): readonly string[] {
    return this.#record.groups;
  }

  get application(): string {
    return this.#record.application;
  }

  /** Requests that wait for their acks, in the order of sending. */
  get requests(): ReadonlyMap<number, Uint8Array<ArrayBuffer>> {
    return this.#requests;
  }

  /** The URL that asks for this session again. */
  get resumeUrl(): string {
    const url = new URL(this.#record.endpoint);
    url.searchParams.set("awps_connection_id", this.#record.connectionId);
    url.searchParams.set("awps_reconnection_token", this.#record.reconnectionToken);
    return url.href;
  }

  /** The gateway may send a fresh token for the same session. */
  refresh(reconnectionToken: string): void {
    this.#record.reconnectionToken = reconnectionToken;
    this.#trySave();
  }

  /** Keeps a request, whose frame `encode` makes, under the next ack id. */
  addRequest(encode: (ackId: number) => Uint8Array<ArrayBuffer>, application: string): number {
    const ackId = this.#record.nextAckId;
    const frame = encode(ackId);
    const text = encodeBase64(frame);
    if (this.#requests.size >= REQUESTS_MAX || this.#characters + text.length > REQUEST_CHARACTERS_MAX) {
      throw new OutboxFullError();
    }
    const before = { ...this.#record };
    Object.assign(this.#record, { nextAckId: ackId + 1, application });
    try {
      this.#storage.setItem(this.#requestKey(ackId), text);
      this.#save();
    } catch {
      // Others have filled the storage.
      this.#storage.removeItem(this.#requestKey(ackId));
      Object.assign(this.#record, before);
      throw new OutboxFullError();
    }
    this.#requests.set(ackId, frame);
    this.#characters += text.length;
    return ackId;
  }

  /** The request is settled. */
  removeRequest(ackId: number): void {
    const text = this.#storage.getItem(this.#requestKey(ackId));
    this.#storage.removeItem(this.#requestKey(ackId));
    this.#requests.delete(ackId);
    this.#characters -= text?.length ?? 0;
  }

  /** A message was handed to the application, whose state is now `application`. */
  delivered(sequenceId: number, application: string): void {
    this.#record.largestSequenceId = sequenceId;
    this.#record.application = application;
    this.#trySave();
  }

  setGroup(group: string, isJoined: boolean): void {
    const others = this.#record.groups.filter((joined) => joined !== group);
    this.#record.groups = isJoined ? [...others, group] : others;
    this.#trySave();
  }

  #requestKey(ackId: number): string {
    return `${this.#prefix}request/${ackId}`;
  }

  #save(): void {
    this.#storage.setItem(`${this.#prefix}session`, JSON.stringify(this.#record));
    this.#keptSequenceId = this.#record.largestSequenceId;
  }

  #trySave(): void {
    try {
      this.#save();
    } catch (error) {
      reportError(error);
    }
  }
}

function prefixOf(name: string): string {
  return `oncewire/${name}/`;
}

function keysOf(storage: Storage, prefix: string): string[] {
  const keys = Array.from({ length: storage.length }, (_, index) => storage.key(index));
  return keys.filter((key): key is string => key?.startsWith(prefix) ?? false);
}

/** Anything that another version or another program left there is no session. */
function parseRecord(text: string): SessionRecord | undefined {
  let record: Partial<SessionRecord>;
  try {
    record = JSON.parse(text) ?? {};
  } catch {
    return undefined;
  }
  const { connectionId, reconnectionToken, endpoint, largestSequenceId, nextAckId, groups, application } = record;
  const isWhole =
    [connectionId, reconnectionToken, endpoint, application].every((field) => typeof field === "string") &&
    Number.isSafeInteger(largestSequenceId) &&
    Number.isSafeInteger(nextAckId) &&
    URL.canParse(endpoint ?? "") &&
    Array.isArray(groups) &&
    groups.every((group) => typeof group === "string");
  return isWhole ? (record as SessionRecord) : undefined;
}

function encodeBase64(bytes: Uint8Array): string {
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
}

function decodeBase64(text: string): Uint8Array<ArrayBuffer> | undefined {
  try {
    return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  } catch {
    return undefined;
  }
}
