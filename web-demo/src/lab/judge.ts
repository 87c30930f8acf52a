/**
 * Judges what one subscriber was given, by the numbers that publishers put into their messages. Knows nothing of
 * sockets, sequence ids and clients: only what the application saw.
 */

/** What was seen of one publisher. */
interface Lane {
  /** The first number that counts. */
  first: number;
  /** The largest number seen. */
  largest: number;
  /** Numbers below it that have not come. */
  missing: number[];
  /** Of the missing ones, up to this number they are known to be lost. */
  settled: number;
}

export type Sighting = "next" | "ahead" | "late" | "duplicate";

/** A judge as it can be stored. */
export interface JudgeState {
  lanes: Record<string, Lane>;
  delivered: number;
  duplicated: number;
  outOfOrder: number;
}

export class Judge {
  readonly #state: JudgeState;

  constructor(state: JudgeState = { lanes: {}, delivered: 0, duplicated: 0, outOfOrder: 0 }) {
    this.#state = state;
  }

  get state(): JudgeState {
    return this.#state;
  }

  get delivered(): number {
    return this.#state.delivered;
  }

  /** Messages that the application was given twice. */
  get duplicated(): number {
    return this.#state.duplicated;
  }

  get outOfOrder(): number {
    return this.#state.outOfOrder;
  }

  /** Numbers that were skipped and may still come. */
  get gaps(): number {
    return this.#count((lane, number) => number > lane.settled);
  }

  /** Numbers that were skipped and can't come any more. */
  get lost(): number {
    return this.#count((lane, number) => number <= lane.settled);
  }

  /** The publisher's messages count from the one after `number`. */
  expectAfter(publisher: string, number: number): void {
    this.#state.lanes[publisher] ??= { first: number + 1, largest: number, missing: [], settled: 0 };
  }

  /** The first number of a publisher that counts here, if any does. */
  first(publisher: string): number | undefined {
    return this.#state.lanes[publisher]?.first;
  }

  largest(publisher: string): number {
    return this.#state.lanes[publisher]?.largest ?? 0;
  }

  knows(publisher: string): boolean {
    return publisher in this.#state.lanes;
  }

  see(publisher: string, number: number): Sighting {
    this.expectAfter(publisher, number - 1);
    const lane = this.#state.lanes[publisher] as Lane;
    if (number > lane.largest) {
      const sighting = number === lane.largest + 1 ? "next" : "ahead";
      for (let skipped = lane.largest + 1; skipped < number; skipped++) lane.missing.push(skipped);
      lane.largest = number;
      this.#state.delivered++;
      return sighting;
    }
    const place = lane.missing.indexOf(number);
    if (place < 0) {
      this.#state.duplicated++;
      return "duplicate";
    }
    lane.missing.splice(place, 1);
    this.#state.delivered++;
    this.#state.outOfOrder++;
    return "late";
  }

  /** All is healed and a later message has come: what is missing up to `number` is lost. */
  settle(publisher: string, number: number): void {
    const lane = this.#state.lanes[publisher];
    if (lane !== undefined) lane.settled = Math.max(lane.settled, number);
  }

  #count(counts: (lane: Lane, number: number) => boolean): number {
    const lanes = Object.values(this.#state.lanes);
    return lanes.reduce((sum, lane) => sum + lane.missing.filter((number) => counts(lane, number)).length, 0);
  }
}
