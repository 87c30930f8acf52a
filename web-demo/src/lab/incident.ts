/**
 * One fault and what became of it, told in words. What it tells is the difference of counters between the fault and
 * the moment when all was healed.
 */
import type { Participant, Publisher, Subscriber } from "./participants.js";

export interface Verdict {
  lost: number;
  duplicated: number;
  outOfOrder: number;
}

/** Counters of all participants at one moment. */
interface Snapshot extends Verdict {
  resumed: number;
  replaced: number;
  suppressed: number;
  sentAgain: number;
  answeredDuplicate: number;
  uncertain: number;
}

export class Incident {
  /** What is known so far, for people. */
  text: string;
  verdict: Verdict | undefined;
  hasFailed = false;
  /** Messages that the gateway had acknowledged and a subscriber had not got: the most at one time. */
  #waitingPeak = 0;
  #outboxPeak = 0;
  readonly #before: Snapshot;

  constructor(
    /** What was done, such as `Socket of S1 cut`. */
    readonly title: string,
    /** Whom it hit. */
    readonly targets: readonly Participant[],
    private readonly publishers: readonly Publisher[],
    private readonly subscribers: readonly Subscriber[],
    /** Whether sockets were to drop. */
    private readonly drops: boolean,
  ) {
    this.text = `${title} …`;
    this.#before = this.#snapshot();
  }

  /** To be called often while the incident lasts. */
  watch(): void {
    if (this.verdict !== undefined || this.hasFailed) return;
    for (const target of this.targets) {
      if (target.role === "subscriber") {
        const waiting = waitingFor(target as Subscriber, this.publishers);
        this.#waitingPeak = Math.max(this.#waitingPeak, waiting);
      } else {
        this.#outboxPeak = Math.max(this.#outboxPeak, (target as Publisher).outboxDepth);
      }
    }
    const down = this.targets.filter((target) => target.socket !== "open").length;
    this.text = this.#join(down > 0 && `${down} ${plural(down, "socket")} down`);
  }

  /** All is healed. */
  close(): void {
    const now = this.#snapshot();
    const difference = (counter: keyof Snapshot) => now[counter] - this.#before[counter];
    this.verdict = {
      lost: difference("lost"),
      duplicated: difference("duplicated"),
      outOfOrder: difference("outOfOrder"),
    };
    const outage = Math.round(Math.max(0, ...this.targets.map((target) => target.lastOutageMs ?? 0)));
    const [resumed, replaced, uncertain] = [difference("resumed"), difference("replaced"), difference("uncertain")];
    const [again, duplicates, suppressed] = [
      difference("sentAgain"),
      difference("answeredDuplicate"),
      difference("suppressed"),
    ];
    this.text = this.#join(
      this.drops && resumed > 0 && (resumed === 1 ? `resumed in ${outage} ms` : `${resumed} sessions resumed in ${outage} ms`),
      replaced > 0 && `${replaced} ${plural(replaced, "session")} lost and replaced`,
      uncertain > 0 && `nobody knows what became of ${uncertain} ${plural(uncertain, "publish", "publishes")}`,
      again > 0 && `${again} sent again with the same ack id`,
      duplicates > 0 && `${duplicates} of them had been stored: answered “Duplicate”`,
      suppressed > 0 && `${suppressed} came twice, dropped by sequence id`,
      `${this.verdict.lost} lost`,
      `${this.verdict.duplicated} duplicated`,
      this.verdict.outOfOrder > 0 && `${this.verdict.outOfOrder} out of order`,
    );
  }

  /** It could not be done. */
  fail(reason: string): void {
    this.hasFailed = true;
    this.text = `${this.title}: ${reason}`;
  }

  #join(...parts: (string | false)[]): string {
    const waited =
      this.#waitingPeak > 0 && `${this.#waitingPeak} ${plural(this.#waitingPeak, "message")} waited at the gateway`;
    const queued = this.#outboxPeak > 1 && `${this.#outboxPeak} unacknowledged in the outbox`;
    return [this.title, waited, queued, ...parts].filter((part) => part !== false).join(" · ");
  }

  #snapshot(): Snapshot {
    const sum = <T>(items: readonly T[], count: (item: T) => number) =>
      items.reduce((total, item) => total + count(item), 0);
    return {
      lost: sum(this.subscribers, ({ judge }) => judge.lost),
      duplicated: sum(this.subscribers, ({ judge }) => judge.duplicated),
      outOfOrder: sum(this.subscribers, ({ judge }) => judge.outOfOrder),
      resumed: sum(this.targets, ({ sockets }) => sockets.resumed),
      replaced: sum(this.targets, ({ sockets }) => sockets.replaced),
      suppressed: sum(this.subscribers, ({ suppressed }) => suppressed),
      sentAgain: sum(this.publishers, ({ sentAgain }) => sentAgain),
      answeredDuplicate: sum(this.publishers, ({ answeredDuplicate }) => answeredDuplicate),
      uncertain: sum(this.publishers, ({ uncertain }) => uncertain),
    };
  }
}

/** Acknowledged messages that a subscriber has not got yet. */
export function waitingFor(subscriber: Subscriber, publishers: readonly Publisher[]): number {
  return publishers.reduce((waiting, publisher) => {
    if (!subscriber.judge.knows(publisher.id)) return waiting;
    return waiting + publisher.ackedAfter(subscriber.judge.largest(publisher.id));
  }, 0);
}

export function plural(count: number, noun: string, nouns = `${noun}s`): string {
  return count === 1 ? noun : nouns;
}
