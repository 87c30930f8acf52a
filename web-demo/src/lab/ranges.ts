/** A set of whole numbers as ranges, so that a wide gap costs no more than a narrow one. */
export class Ranges {
  /** First and last number of each range, ascending and apart. */
  readonly #ranges: [first: number, last: number][];

  constructor(pairs: readonly (readonly [number, number])[] = []) {
    this.#ranges = pairs.map(([first, last]) => [first, last]);
  }

  /** As it can be stored. */
  get pairs(): readonly (readonly [first: number, last: number])[] {
    return this.#ranges;
  }

  /** How many numbers there are, up to `last`. */
  count(last = Number.MAX_SAFE_INTEGER): number {
    return this.#ranges.reduce((sum, range) => sum + Math.max(0, Math.min(range[1], last) - range[0] + 1), 0);
  }

  /** The numbers between `first` and `last`. */
  *within(first: number, last: number): Generator<number> {
    for (const [from, to] of this.#ranges) {
      for (let number = Math.max(first, from); number <= Math.min(last, to); number++) yield number;
    }
  }

  /** Adds numbers that are not there; none where `last` is below `first`. */
  add(first: number, last: number): void {
    if (last < first) return;
    const after = this.#ranges.findIndex((range) => range[0] > last);
    this.#ranges.splice(after < 0 ? this.#ranges.length : after, 0, [first, last]);
  }

  /** Tells whether it was there. */
  remove(number: number): boolean {
    const index = this.#ranges.findIndex(([first, last]) => first <= number && number <= last);
    const range = this.#ranges[index];
    if (range === undefined) return false;
    const rest: [number, number][] = [[range[0], number - 1], [number + 1, range[1]]];
    this.#ranges.splice(index, 1, ...rest.filter(([first, last]) => first <= last));
    return true;
  }
}
