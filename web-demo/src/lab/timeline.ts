/**
 * What happened at which participant and when, for the time that the drawing shows. Knows nothing of how it is drawn.
 */

/** Entries that are kept; a flood pushes older ones out. */
const ENTRIES_MAX = 6_000;
const OUTAGES_MAX = 200;

export type Entry =
  | { kind: "publish"; at: number; lane: number; publisher: number; number: number; again: boolean }
  | { kind: "ack"; at: number; lane: number; publisher: number; number: number; duplicate: boolean }
  | { kind: "deliver"; at: number; lane: number; publisher: number; number: number; publishedAt: number | undefined }
  | { kind: "suppressed"; at: number; lane: number; publisher: number; number: number }
  | { kind: "sequenceAck"; at: number; lane: number; sequenceId: number }
  | { kind: "fault"; at: number; lane: number | undefined; label: string };

/** A time without a socket; it lasts while `end` is undefined. */
export interface Outage {
  lane: number;
  begin: number;
  end: number | undefined;
}

export class Timeline {
  readonly entries: Entry[] = [];
  readonly outages: Outage[] = [];
  /** When each message was first published, by publisher and number. */
  readonly #published = new Map<string, number>();
  readonly #acked = new Set<string>();

  add(entry: Entry): void {
    if (entry.kind === "publish" && !entry.again) this.#published.set(key(entry), entry.at);
    if (entry.kind === "ack") this.#acked.add(key(entry));
    this.entries.push(entry);
    if (this.entries.length <= ENTRIES_MAX) return;
    for (const old of this.entries.splice(0, ENTRIES_MAX / 10)) {
      if (old.kind !== "publish") continue;
      this.#published.delete(key(old));
      this.#acked.delete(key(old));
    }
  }

  isAcked(publisher: number, number: number): boolean {
    return this.#acked.has(key({ publisher, number }));
  }

  publishedAt(publisher: number, number: number): number | undefined {
    return this.#published.get(key({ publisher, number }));
  }

  down(lane: number, at: number): void {
    if (this.outages.some((outage) => outage.lane === lane && outage.end === undefined)) return;
    this.outages.push({ lane, begin: at, end: undefined });
    if (this.outages.length > OUTAGES_MAX) this.outages.shift();
  }

  up(lane: number, at: number): void {
    for (const outage of this.outages) if (outage.lane === lane) outage.end ??= at;
  }
}

function key({ publisher, number }: { publisher: number; number: number }): string {
  return `${publisher}/${number}`;
}
