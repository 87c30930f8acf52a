/**
 * A page that is loaded again: the protobuf client takes its session up, the official client can't; and two tabs
 * never share one session.
 */
import assert from "node:assert/strict";
import { test } from "node:test";

import { until } from "../../sdk/js/support/waiting.js";
import { Browser } from "../support/browser.js";
import { DevGateway } from "../support/gateway.js";
import { LabPage } from "../support/lab_page.js";
import { Observer } from "../support/observer.js";

const GROUP = "lab-reload";

async function scene(t) {
  const gateway = await DevGateway.start(t);
  const browser = await Browser.launch(gateway);
  const observer = await Observer.join(gateway, GROUP);
  const lab = await LabPage.open(browser, gateway.origin, GROUP);
  return { gateway, browser, observer, lab };
}

async function row(lab, name) {
  return lab.page.locator(`.reload [data-row="${name}"] td`).allTextContents();
}

test("a reload in the middle of a burst resumes the protobuf sessions", async (t) => {
  const { observer, lab } = await scene(t);
  const [publisher, subscriber] = [await lab.connectionId("P2"), await lab.connectionId("S2")];
  const [official, id] = [await lab.connectionId("S1"), await lab.publisherId("P2")];
  await until("a few messages", async () => (await lab.counter("S2", "delivered")) > 3);
  await lab.press("reload");
  await lab.page.waitForSelector(".reload:not([hidden])");

  assert.equal(await lab.connectionId("P2"), publisher);
  assert.equal(await lab.connectionId("S2"), subscriber);
  assert.notEqual(await lab.connectionId("S1"), official);
  const [[officialSession, session], [, missed], [, duplicated], [, unanswered]] = await Promise.all(
    ["session", "missed", "duplicated", "unanswered"].map((name) => row(lab, name)),
  );
  assert.match(officialSession, /^a new one/);
  assert.match(session, /^the same/);
  assert.deepEqual([missed, duplicated], ["0", "0"]);
  // The burst was on its way when the page went.
  assert.match(unanswered, /^[1-9]\d* sent again, all answered$/);

  await lab.settle();
  await lab.assertSpotless();
  assert.equal(await lab.publisherId("P2"), id);
  await observer.assertExactly(id, await lab.counter("P2", "acked"));
});

test("ten reloads while sending lose and duplicate nothing", async (t) => {
  const { observer, lab } = await scene(t);
  const sessions = [await lab.connectionId("P2"), await lab.connectionId("S2")];
  for (let turn = 0; turn < 10; turn++) {
    await lab.setRate(100);
    const before = await lab.counter("P2", "acked");
    await until("some traffic", async () => (await lab.counter("P2", "acked")) > before + 10);
    await lab.page.reload();
    await lab.ready();
  }
  await lab.settle();
  await lab.assertSpotless();
  assert.deepEqual([await lab.connectionId("P2"), await lab.connectionId("S2")], sessions);
  await observer.assertExactly(await lab.publisherId("P2"), await lab.counter("P2", "acked"));
});

test("a duplicated tab gets a session of its own", async (t) => {
  const { gateway, browser, observer, lab } = await scene(t);
  const stored = await lab.page.evaluate(() => JSON.stringify({ ...sessionStorage }));
  const page = await browser.page();
  await page.addInitScript((items) => {
    for (const [key, value] of Object.entries(JSON.parse(items))) sessionStorage.setItem(key, value);
  }, stored);
  await page.goto(gateway.origin);
  const copy = new LabPage(page);
  await copy.ready();
  for (const name of ["P2", "S2"]) assert.notEqual(await copy.connectionId(name), await lab.connectionId(name));

  await until("messages of both", async () => (await copy.counter("P2", "acked")) > 3);
  await copy.settle();
  await lab.settle();
  for (const tab of [lab, copy]) {
    await tab.assertSpotless();
    assert.equal(await tab.counter("S2", "resumed"), 0, "nobody took the other's session");
    await observer.assertExactly(await tab.publisherId("P2"), await tab.counter("P2", "acked"));
  }
});
