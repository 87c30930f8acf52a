/**
 * A restart does not bring back what a client has acknowledged: one that keeps up at a high rate keeps its session over a
 * kill of the gateway, although many times what its outbox may hold has been through it.
 */
import assert from "node:assert/strict";
import { test } from "node:test";

import { ALL_GROUPS, Client, NO_RETRIES } from "../support/client.js";
import { Gateway } from "../support/gateway.js";
import { sleep, until } from "../support/waiting.js";

/** About 1,000 messages a second, on a machine that can. */
const PER_TICK = 20;
const TICK_MS = 20;
const BEFORE_THE_KILL = 5_000;
const MESSAGES = 7_000;
/**
 * Twice this is still less than what comes before the kill. The client acknowledges each 128 messages, so it never has so
 * many unacknowledged as long as the publisher is not further ahead than a part of it.
 */
const BOUND = 2_000;
const AHEAD = 500;

test("1,000 messages a second for seconds and a kill: acknowledged publishes are lost, and the session with them", async (t) => {
  const gateway = await Gateway.start(t, { disk: true, toml: `outbox_messages_max = ${BOUND}\n` });
  const publisher = await Client.connect(t, gateway, NO_RETRIES);
  const subscriber = await Client.connect(t, gateway, { token: { groups: ["g"], roles: ALL_GROUPS } });
  const received = new Set();
  subscriber.sdk.on("group-message", ({ message }) => received.add(message.data));

  const sends = [];
  const publishAll = async () => {
    for (; sends.length < MESSAGES; await sleep(TICK_MS)) {
      await until("the subscriber", () => sends.length - received.size < AHEAD || subscriber.disconnections > 0);
      assert.equal(subscriber.disconnections, 0, "the session is lost");
      for (let number = 0; number < PER_TICK; number++) {
        sends.push(publisher.sendUntilDone("g", `${sends.length}`, sends.length + 1));
      }
    }
  };
  const published = publishAll();
  await Promise.race([published, until("messages before the kill", () => received.size >= BEFORE_THE_KILL)]);
  await gateway.kill();
  await gateway.launch();
  await published;
  await Promise.all(sends);
  await until("all messages", () => received.size === sends.length || subscriber.disconnections > 0);

  assert.equal(received.size, sends.length);
  assert.equal(subscriber.messages.length, sends.length, "each came to the application once");
  const ids = subscriber.messages.map(({ sequenceId }) => sequenceId);
  assert.ok(ids.every((id, index) => index === 0 || id > ids[index - 1]), "ids increase");
  assert.equal(subscriber.disconnections, 0);
  assert.equal(subscriber.connections.length, 1);
});
