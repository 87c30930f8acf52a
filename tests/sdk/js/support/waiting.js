/**
 * Waiting for conditions. Timeouts are a safety net for noisy machines; no test passes or fails by how long a thing took.
 */
import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";

export { sleep };

/** How long anything may take before its test gives up. */
export const PATIENCE_MS = 60_000;

/**
 * Patience is counted in turns of the event loop, so that a machine that stands still for a minute, and the processes
 * under test with it, does not use it up.
 */
const TURN_MS = 100;

/** The promise's value, or a failure that says what was awaited. */
export async function within(what, promise, timeoutMs = PATIENCE_MS) {
  let timer;
  const late = new Promise((_, reject) => {
    let turns = Math.ceil(timeoutMs / TURN_MS);
    timer = setInterval(() => {
      if (--turns <= 0) reject(new assert.AssertionError({ message: `timed out: ${what}` }));
    }, TURN_MS);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearInterval(timer);
  }
}

/** Waits until `condition()` is truthy, and returns its value. */
export async function until(what, condition, timeoutMs = PATIENCE_MS) {
  for (let waited = 0; ; ) {
    const value = await condition();
    if (value) return value;
    if (waited >= timeoutMs) assert.fail(`timed out: ${what}`);
    const before = Date.now();
    await sleep(5);
    waited += Math.min(Math.max(Date.now() - before, 1), TURN_MS);
  }
}

/** Runs `work(item)` for all items, at most `width` at a time; the first failure ends it. */
export async function inParallel(items, width, work) {
  const queue = items[Symbol.iterator]();
  let failed = false;
  const lanes = Array.from({ length: width }, async () => {
    for (const item of queue) {
      if (failed) return;
      try {
        await work(item);
      } catch (error) {
        failed = true;
        throw error;
      }
    }
  });
  await Promise.all(lanes);
}
