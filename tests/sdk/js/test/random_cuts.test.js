/**
 * 500 sends while the sockets of publisher and subscriber are being cut at random bytes. The SDK's own retries are off,
 * since each would take a new ack id; the test repeats under the same one, and the independent checker judges.
 */
import assert from "node:assert/strict";
import { test } from "node:test";

import { Client, NO_RETRIES } from "../support/client.js";
import { Gateway } from "../support/gateway.js";
import { History, Recorder } from "../support/history.js";
import { CUTS, ProxyProcess } from "../support/proxy.js";
import { until } from "../support/waiting.js";

const SENDS = 500;

/** The seed of a run; `ONCEWIRE_SEED` repeats one. */
const SEEDS = process.env.ONCEWIRE_SEED ? [Number(process.env.ONCEWIRE_SEED)] : [1, 2, 3];

for (const seed of SEEDS) {
  for (const lanes of [1, 5]) {
    test(`500 sends under random cuts, seed ${seed}, ${lanes} at a time (22 #6, #9; 22.1 #4, #22)`, async (t) => {
      const gateway = await Gateway.start(t);
      const proxies = ProxyProcess.start(t);
      const history = new History();
      const connect = async (offset) => {
        const proxy = await proxies.open(gateway);
        const client = Client.create(t, proxy, NO_RETRIES);
        const recorder = new Recorder(history, client, "chat");
        await client.start();
        await recorder.join("g", 1);
        await proxy.random({
          seed: seed * 1_000 + lanes * 10 + offset,
          bytes_min: 300,
          bytes_max: 6_000,
          connections_max: 25,
          actions: CUTS,
        });
        // The connection that is open already is no part of the schedule; the first one that is starts now.
        await proxy.strike("cut_rst");
        return { proxy, client, recorder };
      };
      const publisher = await connect(1);
      const subscriber = await connect(2);

      await Promise.all(
        Array.from({ length: lanes }, async (_, lane) => {
          for (let number = lane; number < SENDS; number += lanes) {
            await publisher.recorder.send("g", `p${seed}-${number}`, 1_000 + number, `lane ${lane}`);
          }
        }),
      );
      for (const { client, recorder } of [publisher, subscriber]) {
        await client.received("g", SENDS);
        // An ack read now shows that the session is attached and has nothing more to give.
        await recorder.send("elsewhere", `end of ${client.connectionId}`, 9_000);
        assert.equal(client.texts("g").length, SENDS);
        assert.equal(client.connections.length, 1, "the session was replaced");
        assert.equal(client.disconnections, 0);
      }
      history.quiesced([publisher.client, subscriber.client]);
      const judged = await history.judge();
      assert.equal(judged.must_arrive, 2 * SENDS);

      const cuts = [];
      for (const { proxy } of [publisher, subscriber]) cuts.push((await proxy.report()).faults);
      const { resends, acked_duplicate } = judged;
      t.diagnostic(`cuts: ${cuts.join(" and ")}, resends: ${resends}, duplicates: ${acked_duplicate}`);
      assert.ok(Math.min(...cuts) >= 5, `too few cuts to mean anything: ${cuts}`);
    });
  }
}

test("20,000 messages in flight to a subscriber that is cut all the time (22 #4; 22.1 #5, #6)", async (t) => {
  const messages = 20_000;
  const ahead = 2_000;
  const gateway = await Gateway.start(t);
  const proxy = await ProxyProcess.start(t).open(gateway);
  const publisher = await Client.connect(t, gateway);
  const subscriber = await Client.connect(t, proxy, { token: { groups: ["g"] } });
  const seed = SEEDS[0];
  await proxy.random({ seed, bytes_min: 1_000, bytes_max: 150_000, connections_max: 60, actions: CUTS });
  await proxy.strike("client_dies");

  let received = 0;
  let wrong;
  let wake = () => {};
  subscriber.sdk.on("group-message", ({ message }) => {
    if (message.data !== `${received}`) wrong ??= `${message.data} instead of ${received}`;
    received++;
    wake();
  });
  subscriber.sdk.on("disconnected", () => {
    wrong ??= "the session was lost";
    wake();
  });
  const sends = [];
  for (let number = 0; number < messages && !wrong; number++) {
    while (number - received >= ahead && !wrong) await new Promise((resolve) => (wake = resolve));
    sends.push(publisher.send("g", `${number}`));
  }
  await Promise.all(sends);
  await until("all messages", () => wrong || received >= messages);
  assert.equal(wrong, undefined);
  assert.equal(received, messages);
  assert.equal(subscriber.connections.length, 1);
  assert.equal(subscriber.disconnections, 0);
  const { faults } = await proxy.report();
  t.diagnostic(`cuts: ${faults}`);
  assert.ok(faults >= 10, `too few cuts to mean anything: ${faults}`);
});
