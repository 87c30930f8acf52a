/**
 * The lab's judge sees what goes wrong: its zeros are worth nothing otherwise.
 */
import assert from "node:assert/strict";
import { test } from "node:test";

import { bundle } from "../support/bundle.js";

const code = await bundle("lab/judge.ts");
const { Judge, parseJudge } = await import(`data:text/javascript;base64,${Buffer.from(code).toString("base64")}`);

/** What a judge says of these numbers of one publisher, whose first is 1. */
function judged(numbers, settledUpTo) {
  const judge = new Judge();
  judge.expectAfter("p", 0);
  for (const number of numbers) judge.see("p", number);
  if (settledUpTo !== undefined) judge.settle("p", settledUpTo);
  const { delivered, duplicated, outOfOrder, gaps, lost } = judge;
  return { delivered, duplicated, outOfOrder, gaps, lost };
}

const spotless = { duplicated: 0, outOfOrder: 0, gaps: 0, lost: 0 };

test("numbers in order are spotless", () => {
  assert.deepEqual(judged([1, 2, 3], 3), { ...spotless, delivered: 3 });
});

test("a skipped number is a gap, and a loss once all is healed", () => {
  assert.deepEqual(judged([1, 4]), { ...spotless, delivered: 2, gaps: 2 });
  assert.deepEqual(judged([1, 4], 4), { ...spotless, delivered: 2, lost: 2 });
  assert.deepEqual(judged([2], 2), { ...spotless, delivered: 1, lost: 1 }, "the first one counts too");
});

test("a number that comes late is out of order, not lost", () => {
  assert.deepEqual(judged([1, 3, 2], 3), { ...spotless, delivered: 3, outOfOrder: 1 });
});

test("a number that comes twice is a duplicate, the latest one as well", () => {
  assert.deepEqual(judged([1, 2, 1, 2], 2), { ...spotless, delivered: 2, duplicated: 2 });
});

test("publishers are judged apart, from the first number that a late subscriber sees", () => {
  const judge = new Judge();
  for (const [publisher, number] of [["p", 7], ["q", 1], ["p", 8], ["q", 3]]) judge.see(publisher, number);
  assert.deepEqual([judge.delivered, judge.gaps, judge.duplicated], [4, 1, 0]);
  const next = new Judge(JSON.parse(JSON.stringify(judge.state)));
  next.see("q", 2);
  next.see("p", 8);
  assert.deepEqual([next.gaps, next.outOfOrder, next.duplicated], [0, 1, 1], "a stored judge goes on");
});

test("what was not acknowledged is no loss, whether it comes or not", () => {
  const judge = new Judge();
  judge.expectAfter("p", 0);
  judge.see("p", 1);
  judge.excuse("p", 2);
  for (const number of [4, 5]) judge.see("p", number);
  judge.excuse("p", 3);
  judge.excuse("p", 5);
  judge.settleAll();
  assert.deepEqual([judge.lost, judge.gaps], [0, 0]);
  assert.equal(judge.see("p", 3), "late");
  assert.equal(judge.see("p", 5), "duplicate", "it had come before");
});

test("all publishers can be settled, those that are gone too", () => {
  const judge = new Judge();
  for (const [publisher, number] of [["gone", 1], ["gone", 4], ["p", 1]]) judge.see(publisher, number);
  judge.settleAll();
  assert.deepEqual([judge.lost, judge.gaps], [2, 0]);
});

test("a wide gap is counted at once, and what lies too far ahead is ignored", () => {
  const judge = new Judge();
  judge.see("p", 1);
  assert.equal(judge.see("p", 1_000_001), "ahead");
  assert.equal(judge.gaps, 999_999);
  assert.equal(judge.see("p", 2_000_002), "ignored");
  assert.equal(judge.see("p", 500_000), "late");
  assert.equal(judge.gaps, 999_998);
  assert.equal(judge.see("__proto__", 1), "next", "any name is a publisher");
  assert.ok(!judge.knows("constructor"));
});

test("anything else that is stored is no judge", () => {
  for (const text of ["", "null", "{}", '{"lanes":{}}', '{"lanes":[["p",{}]]}']) assert.equal(parseJudge(text), undefined);
  assert.equal(parseJudge(JSON.stringify(new Judge().state)).delivered, 0);
});
