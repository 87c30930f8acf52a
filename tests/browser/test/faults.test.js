/**
 * Each button of the lab: the gateway's own trace shows that the fault happened, and the page and an observer outside
 * it agree that nothing was lost, duplicated or out of order.
 */
import assert from "node:assert/strict";
import { test } from "node:test";

import { until } from "../../sdk/js/support/waiting.js";
import { Browser } from "../support/browser.js";
import { DevGateway } from "../support/gateway.js";
import { LabPage, PUBLISHERS, SUBSCRIBERS } from "../support/lab_page.js";
import { Observer } from "../support/observer.js";

const GROUP = "lab-faults";

async function scene(t, { durability, breaksConnections } = {}) {
  const gateway = await DevGateway.start(t, { durability });
  const browser = await Browser.launch(gateway, { breaksConnections });
  const observer = await Observer.join(gateway, GROUP);
  const lab = await LabPage.open(browser, gateway.origin, GROUP);
  return { gateway, browser, observer, lab };
}

/** The page's counters and the observer agree, publisher by publisher. */
async function assertAgreement(lab, observer) {
  await lab.settle();
  await lab.assertSpotless();
  let published = 0;
  for (const name of PUBLISHERS) {
    const acked = await lab.counter(name, "acked");
    assert.ok(acked > 0, `${name} published`);
    await observer.assertExactly(await lab.publisherId(name), acked);
    published += acked;
  }
  for (const name of SUBSCRIBERS) assert.equal(await lab.counter(name, "delivered"), published, name);
}

for (const target of [...PUBLISHERS, ...SUBSCRIBERS]) {
  test(`the socket of ${target} is cut`, async (t) => {
    const { gateway, observer, lab } = await scene(t);
    const connectionId = await lab.connectionId(target);
    await lab.aim(target);
    await lab.press("cut");
    assert.equal((await gateway.fault("cut", connectionId)).effect, "dropped without a close frame");
    assert.match(await lab.judged(), new RegExp(`^Socket of ${target} cut .* resumed in \\d+ ms .* 0 lost · 0 duplicated$`));
    assert.equal(await lab.counter(target, "resumed"), 1);
    assert.equal(await lab.connectionId(target), connectionId);
    await assertAgreement(lab, observer);
  });
}

for (const target of ["P1", "S2"]) {
  test(`the socket of ${target} is stalled`, async (t) => {
    const { gateway, observer, lab } = await scene(t);
    const connectionId = await lab.connectionId(target);
    await lab.setRate(20);
    await lab.aim(target);
    await lab.press("stall");
    const waits = target === "P1" ? "outbox" : "waiting";
    await until("something that waits", async () => (await lab.counter(target, waits)) > 5);
    assert.match(await lab.judged(), /0 lost · 0 duplicated$/);
    assert.equal((await gateway.fault("stall", connectionId)).effect, "neither read nor written");
    assert.equal(await lab.counter(target, "resumed"), 0, "a stall drops no socket");
    await assertAgreement(lab, observer);
  });
}

for (const target of PUBLISHERS) {
  test(`the ack of the next publish of ${target} is lost`, async (t) => {
    const { gateway, observer, lab } = await scene(t);
    const connectionId = await lab.connectionId(target);
    await lab.aim(target);
    await lab.press("lose-ack");
    const { effect } = await gateway.fault("lose-next-ack", connectionId);
    assert.equal(effect, "executed, dropped in place of its ack");
    assert.match(await lab.judged(), /answered “Duplicate” · 0 lost · 0 duplicated$/);
    assert.ok((await lab.counter(target, "answered-duplicate")) >= 1);
    assert.ok((await lab.counter(target, "again")) >= 1);
    assert.equal(await lab.connectionId(target), connectionId);
    await assertAgreement(lab, observer);
  });
}

test("a flood", async (t) => {
  const { observer, lab } = await scene(t);
  await lab.press("flood");
  assert.match(await lab.judged(), /^Flood of 2,000 messages .* 0 lost · 0 duplicated$/);
  await assertAgreement(lab, observer);
});

test("the gateway is killed and started again while everybody sends", async (t) => {
  const { gateway, observer, lab } = await scene(t, { breaksConnections: true });
  const boot = await until("the gateway's boot id", () => lab.boot());
  const participants = [...PUBLISHERS, ...SUBSCRIBERS];
  const before = await Promise.all(participants.map((name) => lab.connectionId(name)));
  await lab.setRate(100);
  await lab.press("kill");
  await gateway.fault("restart");
  assert.match(await lab.judged(), /^Gateway killed with SIGKILL .* 4 sessions resumed .* 0 lost · 0 duplicated$/);
  assert.notEqual(await lab.boot(), boot, "another process serves");
  assert.deepEqual(await Promise.all(participants.map((name) => lab.connectionId(name))), before);
  await assertAgreement(lab, observer);
});

test("the gateway is killed in a flood", async (t) => {
  const { gateway, observer, lab } = await scene(t, { breaksConnections: true });
  await until("the gateway's boot id", () => lab.boot());
  await lab.press("flood");
  await lab.press("kill");
  await gateway.fault("restart");
  await until("both incidents judged", async () => (await lab.page.locator('.incidents [data-state="good"]').count()) === 2);
  await assertAgreement(lab, observer);
});

test("the page says so when a gateway that keeps nothing was killed", async (t) => {
  const { gateway, lab } = await scene(t, { durability: "memory", breaksConnections: true });
  await until("the gateway's boot id", () => lab.boot());
  const participants = [...PUBLISHERS, ...SUBSCRIBERS];
  const before = await Promise.all(participants.map((name) => lab.connectionId(name)));
  await lab.press("kill");
  await gateway.fault("restart");
  assert.match(await lab.judged(), /· 4 sessions lost and replaced ·/);
  for (const [index, name] of participants.entries()) {
    assert.notEqual(await lab.connectionId(name), before[index], `${name} has a new session`);
  }
  const delivered = await lab.counter("S2", "delivered");
  await until("deliveries in the new sessions", async () => (await lab.counter("S2", "delivered")) > delivered);
});
