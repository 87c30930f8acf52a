/**
 * Judges what one subscriber was given, by the numbers that publishers put into their messages. Knows nothing of
 * sockets, sequence ids and clients: only what the application saw.
 */
import { Ranges } from "./ranges.js";

/** Publishers that are judged; anybody may publish to the group. */
const LANES_MAX = 1_000;

/** How far ahead of the largest number seen another one may be. */
const AHEAD_MAX = 1_000_000;

/** What was seen of one publisher. */
interface Lane {
  /** The first number that counts. */
  first: number;
  /** The largest number seen. */
  largest: number;
  /** Numbers below it that have not come. */
  missing: Ranges;
  /** Numbers that were not acknowledged, and need not come. */
  excused: Ranges;
  /** Of the missing ones, up to this number they are known to be lost. */
  settled: number;
}

export type Sighting = "next" | "ahead" | "late" | "duplicate" | "ignored";

/** A judge as it can be stored. */
export interface JudgeState {
  lanes: [publisher: string, lane: Omit<Lane, "missing" | "excused"> & { missing: Ranges["pairs"]; excused: Ranges["pairs"] }][];
  delivered: number;
  duplicated: number;
  outOfOrder: number;
}

export class Judge {
  readonly #lanes = new Map<string, Lane>();
  #delivered = 0;
  #duplicated = 0;
  #outOfOrder = 0;

  constructor(state?: JudgeState) {
    if (state === undefined) return;
    for (const [publisher, lane] of state.lanes) {
      this.#lanes.set(publisher, { ...lane, missing: new Ranges(lane.missing), excused: new Ranges(lane.excused) });
    }
    this.#delivered = state.delivered;
    this.#duplicated = state.duplicated;
    this.#outOfOrder = state.outOfOrder;
  }

  get state(): JudgeState {
    const lanes = [...this.#lanes].map(([publisher, lane]): JudgeState["lanes"][number] => [
      publisher,
      { ...lane, missing: lane.missing.pairs, excused: lane.excused.pairs },
    ]);
    return { lanes, delivered: this.#delivered, duplicated: this.#duplicated, outOfOrder: this.#outOfOrder };
  }

  get delivered(): number {
    return this.#delivered;
  }

  /** Messages that the application was given twice. */
  get duplicated(): number {
    return this.#duplicated;
  }

  get outOfOrder(): number {
    return this.#outOfOrder;
  }

  /** Numbers that were skipped and may still come. */
  get gaps(): number {
    return this.#count(({ missing, settled }) => missing.count() - missing.count(settled));
  }

  /** Numbers that were skipped and can't come any more. */
  get lost(): number {
    return this.#count(({ missing, settled }) => missing.count(settled));
  }

  /** The publisher's messages count from the one after `number`. */
  expectAfter(publisher: string, number: number): void {
    if (this.#lanes.has(publisher) || this.#lanes.size >= LANES_MAX) return;
    const [missing, excused] = [new Ranges(), new Ranges()];
    this.#lanes.set(publisher, { first: number + 1, largest: number, missing, excused, settled: 0 });
  }

  /** The first number of a publisher that counts here, if any does. */
  first(publisher: string): number | undefined {
    return this.#lanes.get(publisher)?.first;
  }

  largest(publisher: string): number {
    return this.#lanes.get(publisher)?.largest ?? 0;
  }

  knows(publisher: string): boolean {
    return this.#lanes.has(publisher);
  }

  see(publisher: string, number: number): Sighting {
    this.expectAfter(publisher, number - 1);
    const lane = this.#lanes.get(publisher);
    if (lane === undefined || number > lane.largest + AHEAD_MAX) return "ignored";
    if (number > lane.largest) {
      const sighting = number === lane.largest + 1 ? "next" : "ahead";
      lane.missing.add(lane.largest + 1, number - 1);
      for (const excused of lane.excused.within(lane.largest + 1, number - 1)) lane.missing.remove(excused);
      lane.excused.remove(number);
      lane.largest = number;
      this.#delivered++;
      return sighting;
    }
    if (!lane.missing.remove(number) && !lane.excused.remove(number)) {
      this.#duplicated++;
      return "duplicate";
    }
    this.#delivered++;
    this.#outOfOrder++;
    return "late";
  }

  /** A number was not acknowledged: it is no loss if it does not come. */
  excuse(publisher: string, number: number): void {
    const lane = this.#lanes.get(publisher);
    if (lane === undefined) return;
    if (lane.missing.remove(number) || number > lane.largest) lane.excused.add(number, number);
  }

  /** All is healed and a later message has come: what is missing up to `number` is lost. */
  settle(publisher: string, number: number): void {
    const lane = this.#lanes.get(publisher);
    if (lane !== undefined) lane.settled = Math.max(lane.settled, number);
  }

  /** {@link settle} of all publishers, of those that are gone too. */
  settleAll(): void {
    for (const lane of this.#lanes.values()) lane.settled = Math.max(lane.settled, lane.largest);
  }

  #count(count: (lane: Lane) => number): number {
    return [...this.#lanes.values()].reduce((sum, lane) => sum + count(lane), 0);
  }
}

/** A stored judge; anything else that is stored there is none. */
export function parseJudge(text: string): Judge | undefined {
  try {
    const state = JSON.parse(text) as JudgeState;
    const numbers = [state.delivered, state.duplicated, state.outOfOrder];
    for (const [publisher, { first, largest, settled, missing, excused }] of state.lanes) {
      if (typeof publisher !== "string") return undefined;
      numbers.push(first, largest, settled, ...missing.flat(), ...excused.flat());
    }
    return numbers.every(Number.isSafeInteger) ? new Judge(state) : undefined;
  } catch {
    return undefined;
  }
}
