/**
 * Many messages to one client that acknowledges as the official client does: nothing is closed and nothing is missing,
 * as long as the publisher is not further ahead of the subscriber's callback than the outbox allows.
 */
import assert from "node:assert/strict";
import { test } from "node:test";

import { ALL_GROUPS, Client } from "../support/client.js";
import { Gateway } from "../support/gateway.js";
import { ProxyProcess } from "../support/proxy.js";
import { until } from "../support/waiting.js";

const MESSAGES = 30_000;

async function stream(t, { toml, ahead }) {
  const gateway = await Gateway.start(t, { toml });
  const proxy = await ProxyProcess.start(t).open(gateway);
  const publisher = await Client.connect(t, gateway);
  const subscriber = await Client.connect(t, proxy, { token: { groups: ["g"], roles: ALL_GROUPS } });

  let received = 0;
  let lastId = 0;
  let wake = () => {};
  subscriber.sdk.on("group-message", ({ message }) => {
    assert.equal(message.data, `${received}`, "messages in order, without a gap");
    assert.ok(message.sequenceId > lastId, "ids increase");
    lastId = message.sequenceId;
    received++;
    wake();
  });
  const sends = [];
  for (let number = 0; number < MESSAGES; number++) {
    while (number - received >= ahead) await new Promise((resolve) => (wake = resolve));
    sends.push(publisher.send("g", `${number}`));
  }
  await Promise.all(sends);
  await until(`${MESSAGES} messages`, () => received >= MESSAGES);

  assert.equal(received, MESSAGES);
  assert.equal(subscriber.connections.length, 1);
  assert.equal(subscriber.disconnections, 0);
  assert.equal(publisher.disconnections, 0);
  assert.equal((await proxy.report()).accepted, 1, "the subscriber's first socket must have lasted");
}

test("30,000 messages to one client, 5,000 ahead (22 #5)", (t) => stream(t, { ahead: 5_000 }));

test("30,000 messages to one client with an outbox of 1,000, 500 ahead (22 #5; 22.1 #13)", (t) =>
  stream(t, { toml: "outbox_messages_max = 1000\n", ahead: 500 }));

test("a client that does not take its messages is cut off at the bound with 1008, and starts anew (22.1 #13)", async (t) => {
  const gateway = await Gateway.start(t, { toml: "outbox_messages_max = 1000\n" });
  const proxy = await ProxyProcess.start(t).open(gateway);
  const publisher = await Client.connect(t, gateway);
  const subscriber = await Client.connect(t, proxy);
  await subscriber.join("g");
  await proxy.refuse();
  await proxy.strike("cut_rst");
  await proxy.wait({ refused: 1 });
  // While it is away 1,000 messages are kept for it, and the next one ends its session.
  const sends = Array.from({ length: 1_001 }, (_, number) => publisher.send("g", `${number}`));
  await Promise.all(sends);
  await proxy.refuse(0);
  await subscriber.connected(2);
  assert.equal(subscriber.disconnections, 1);
  assert.deepEqual(subscriber.messages, []);
  await publisher.send("g", "after");
  assert.deepEqual(await subscriber.received("g", 1), ["after"]);
});

test("exactly the bound is kept for a client that is away (22.1 #13)", async (t) => {
  const gateway = await Gateway.start(t, { toml: "outbox_messages_max = 1000\n" });
  const proxy = await ProxyProcess.start(t).open(gateway);
  const publisher = await Client.connect(t, gateway);
  const subscriber = await Client.connect(t, proxy);
  await subscriber.join("g");
  await proxy.refuse();
  await proxy.strike("cut_rst");
  await proxy.wait({ refused: 1 });
  await Promise.all(Array.from({ length: 1_000 }, (_, number) => publisher.send("g", `${number}`)));
  await proxy.refuse(0);
  const expected = Array.from({ length: 1_000 }, (_, number) => `${number}`);
  assert.deepEqual(await subscriber.received("g", 1_000), expected);
  assert.equal(subscriber.connections.length, 1);
  assert.equal(subscriber.disconnections, 0);
});
