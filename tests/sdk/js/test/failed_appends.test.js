/**
 * The log refuses an append behind a running gateway, with the record not stored (definite) or perhaps stored
 * (indefinite, here: stored). A client that repeats under the same ack id recovers, and the subscriber sees one copy.
 *
 * Needs a gateway built with the feature `fault-injection`.
 */
import assert from "node:assert/strict";
import { test } from "node:test";

import { Client, NO_RETRIES } from "../support/client.js";
import { Gateway } from "../support/gateway.js";
import { History, Recorder } from "../support/history.js";

const SENDS = 12;

/** Which appends of client publishes fail, counted from 1. */
const FAILURES = { ONCEWIRE_TEST_FAIL_APPENDS: "definite:3,indefinite:7" };

async function setUp(t, options) {
  const gateway = await Gateway.start(t, { env: FAILURES });
  const history = new History();
  const connect = async () => {
    const client = Client.create(t, gateway, options);
    const recorder = new Recorder(history, client, "chat");
    await client.start();
    await recorder.join("g", 1);
    return { client, recorder };
  };
  return { history, publisher: await connect(), subscriber: await connect() };
}

const expected = Array.from({ length: SENDS }, (_, number) => `m${number}`);

test("the application repeats under the same ack id (22 #6, #7)", async (t) => {
  const { history, publisher, subscriber } = await setUp(t, NO_RETRIES);
  const results = [];
  for (const [number, text] of expected.entries()) {
    results.push(await publisher.recorder.send("g", text, 100 + number));
  }
  // The third publish was certainly not stored: its first try fails, the second one executes it.
  assert.deepEqual(results[2].errors, ["InternalServerError"]);
  assert.equal(results[2].isDuplicated, false);
  // That second try was the fourth append, so the seventh is the sixth publish. It was stored: whether the gateway
  // settles the open outcome by itself or the client's next try does is the gateway's choice.
  assert.ok(results[5].errors.every((name) => name === "InternalServerError"));
  const others = results.filter((_, number) => ![2, 5].includes(number));
  assert.ok(others.every(({ tries, isDuplicated }) => tries === 1 && !isDuplicated));

  assert.deepEqual(await subscriber.client.received("g", SENDS), expected);
  assert.deepEqual(await publisher.client.received("g", SENDS), expected);
  history.quiesced([publisher.client, subscriber.client]);
  assert.equal((await history.judge()).must_arrive, 2 * SENDS);
});

test("the SDK repeats by itself under an ack id that the application gave (22 #6)", async (t) => {
  const { publisher, subscriber } = await setUp(t, { messageRetryOptions: { maxRetries: 3, retryDelayInMs: 10 } });
  for (const [number, text] of expected.entries()) {
    await publisher.client.send("g", text, { ackId: 100 + number });
  }
  await publisher.client.send("g", "end");
  assert.deepEqual(await subscriber.client.received("g", SENDS + 1), [...expected, "end"]);
});

test("many publishes in flight: the failed ones are repeated, each arrives once", async (t) => {
  const { history, publisher, subscriber } = await setUp(t, NO_RETRIES);
  const lanes = Array.from({ length: 8 }, async (_, lane) => {
    for (let number = lane; number < 200; number += 8) {
      await publisher.recorder.send("g", `m${number}`, 100 + number, `lane ${lane}`);
    }
  });
  await Promise.all(lanes);
  for (const { client, recorder } of [publisher, subscriber]) {
    await client.received("g", 200);
    await recorder.send("elsewhere", `end of ${client.connectionId}`, 9_000);
    assert.equal(new Set(client.texts("g")).size, 200);
    assert.equal(client.texts("g").length, 200);
  }
  history.quiesced([publisher.client, subscriber.client]);
  assert.equal((await history.judge()).must_arrive, 2 * 200);
});
