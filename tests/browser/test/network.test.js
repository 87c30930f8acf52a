/**
 * A network that goes away and comes back. Chromium's own switch leaves open sockets alone, so a proxy cuts them and
 * refuses new ones.
 */
import assert from "node:assert/strict";
import { test } from "node:test";

import { ProxyProcess } from "../../sdk/js/support/proxy.js";
import { until } from "../../sdk/js/support/waiting.js";
import { Browser } from "../support/browser.js";
import { DevGateway } from "../support/gateway.js";
import { LabPage, PUBLISHERS, SUBSCRIBERS } from "../support/lab_page.js";
import { Observer } from "../support/observer.js";

const GROUP = "lab-network";

test("offline and back", async (t) => {
  const gateway = await DevGateway.start(t);
  const proxy = await ProxyProcess.start(t).open(gateway);
  const browser = await Browser.launch(gateway, { breaksConnections: true });
  const observer = await Observer.join(gateway, GROUP);
  const lab = await LabPage.open(browser, `https://${proxy.address}`, GROUP);
  const participants = [...PUBLISHERS, ...SUBSCRIBERS];
  const before = await Promise.all(participants.map((name) => lab.connectionId(name)));

  await browser.context.setOffline(true);
  await proxy.refuse();
  await proxy.strike("cut_rst");
  await lab.setRate(20);
  await until("publishes that wait", async () => {
    const depths = await Promise.all(PUBLISHERS.map((name) => lab.counter(name, "outbox")));
    return depths.every((depth) => depth > 20);
  });
  await proxy.refuse(0);
  await browser.context.setOffline(false);
  await lab.settle();

  await lab.assertSpotless();
  assert.deepEqual(await Promise.all(participants.map((name) => lab.connectionId(name))), before);
  for (const name of participants) assert.ok((await lab.counter(name, "resumed")) >= 1, `${name} came back`);
  for (const name of PUBLISHERS) {
    await observer.assertExactly(await lab.publisherId(name), await lab.counter(name, "acked"));
  }
});
