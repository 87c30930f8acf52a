/**
 * Publishes over the official client in order, and exactly once as long as the session lasts: ack ids of its own, which
 * stay with a message over all tries, and after a drop nothing new before what was not acknowledged. A session that
 * replaces a lost one knows nothing of earlier ack ids, so what was not acknowledged by then may be published twice.
 * Knows no sockets.
 */
import type { Published } from "./link.js";

/** Publishes that may be under way at once. */
const WINDOW = 256;

/** Pause before a try when nobody tells that a socket is open. */
const RETRY_PAUSE_MS = 250;

/** The client's own requests, such as joins after a lost session, take the ids below. */
const FIRST_ACK_ID = 1_001;

/** Sends once; fails when the socket is lost before the ack came. */
export type Attempt = (group: string, content: unknown, ackId: number) => Promise<{ isDuplicated: boolean }>;

/** Errors that another try would not cure. */
export class PublishRefusedError extends Error {
  override readonly name = "PublishRefusedError";
}

interface Entry {
  ackId: number;
  group: string;
  content: unknown;
  resolve(published: Published): void;
  reject(error: unknown): void;
}

export class OrderedOutbox {
  readonly #attempt: Attempt;
  /** Not acknowledged, in order; the first `#underWay` of them were sent. */
  readonly #entries: Entry[] = [];
  #underWay = 0;
  /** Tries that have not come to an end. */
  #open = 0;
  #isBroken = false;
  #nextAckId = FIRST_ACK_ID;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(attempt: Attempt) {
    this.#attempt = attempt;
  }

  publish(group: string, content: unknown): Promise<Published> {
    return new Promise((resolve, reject) => {
      this.#entries.push({ ackId: this.#nextAckId++, group, content, resolve, reject });
      this.#pump();
    });
  }

  /** A socket is open: no need to wait any longer. */
  socketOpened(): void {
    if (this.#open === 0) this.#again();
  }

  #pump(): void {
    while (!this.#isBroken && this.#underWay < Math.min(this.#entries.length, WINDOW)) {
      const entry = this.#entries[this.#underWay++];
      if (entry !== undefined) void this.#try(entry);
    }
  }

  async #try(entry: Entry): Promise<void> {
    this.#open++;
    try {
      const { isDuplicated } = await this.#attempt(entry.group, entry.content, entry.ackId);
      this.#settle(entry, () => entry.resolve({ ackId: entry.ackId, isDuplicate: isDuplicated }));
    } catch (error) {
      if (error instanceof PublishRefusedError) this.#settle(entry, () => entry.reject(error));
      else this.#isBroken = true;
    }
    this.#open--;
    if (!this.#isBroken) this.#pump();
    else if (this.#open === 0) this.#timer ??= setTimeout(() => this.#again(), RETRY_PAUSE_MS);
  }

  #settle(entry: Entry, tell: () => void): void {
    this.#entries.splice(this.#entries.indexOf(entry), 1);
    this.#underWay--;
    tell();
  }

  #again(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#isBroken = false;
    this.#underWay = 0;
    this.#pump();
  }
}
