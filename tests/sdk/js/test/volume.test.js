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

/**
 * Publishes as fast as it may: never more than `ahead` messages before the subscriber's callback, and never more than
 * `unacked` publishes without their acks.
 */
async function stream(t, { toml, ahead, unacked = Infinity }) {
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
  const isWhole = () => subscriber.disconnections + publisher.disconnections === 0;
  subscriber.sdk.on("disconnected", () => wake());
  let acked = 0;
  const sends = [];
  for (let number = 0; number < MESSAGES && isWhole(); number++) {
    while ((number - received >= ahead || number - acked >= unacked) && isWhole()) {
      await new Promise((resolve) => (wake = resolve));
    }
    const send = publisher.send("g", `${number}`).then(() => {
      acked++;
      wake();
    });
    sends.push(send);
  }
  await Promise.all(sends);
  await until(`${MESSAGES} messages`, () => received >= MESSAGES || !isWhole());

  assert.equal(received, MESSAGES);
  assert.equal(subscriber.connections.length, 1);
  assert.equal(subscriber.disconnections, 0);
  assert.equal(publisher.disconnections, 0);
  assert.equal((await proxy.report()).accepted, 1, "the subscriber's first socket must have lasted");
}

test("30,000 messages to one client, 5,000 ahead (22 #5)", (t) => stream(t, { ahead: 5_000 }));

// The SDK handles hundreds of messages in one turn of its event loop, and what it sends in that turn travels over two
// sockets: were all its publishes to overtake its sequence acks, 500 ahead plus as many again would be above 1,000. The
// bound on unacknowledged publishes keeps the sum below it, whichever socket the gateway reads first.
test("30,000 messages to one client with an outbox of 1,000, 500 ahead (22 #5; 22.1 #13)", (t) =>
  stream(t, { toml: "outbox_messages_max = 1000\n", ahead: 500, unacked: 200 }));

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
