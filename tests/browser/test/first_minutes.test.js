/**
 * What somebody meets who has just opened the page: on a phone, after a reload, in a second tab.
 */
import assert from "node:assert/strict";
import { test } from "node:test";

import { until } from "../../sdk/js/support/waiting.js";
import { Browser } from "../support/browser.js";
import { DevGateway } from "../support/gateway.js";
import { LabPage, PUBLISHERS } from "../support/lab_page.js";

async function scene(t, options) {
  const gateway = await DevGateway.start(t);
  const browser = await Browser.launch(gateway, options);
  return { gateway, browser };
}

test("after a reload a publisher had more acknowledged than sent", async (t) => {
  const { gateway, browser } = await scene(t);
  const lab = await LabPage.open(browser, gateway.origin, "lab-sent");
  await until("a few messages", async () => (await lab.counter("P2", "acked")) > 3);
  const before = await lab.counter("P2", "acked");
  await lab.press("reload");
  await lab.page.waitForSelector(".reload:not([hidden])");
  await lab.settle();
  for (const publisher of PUBLISHERS) {
    assert.equal(await lab.counter(publisher, "sent"), await lab.counter(publisher, "acked"), publisher);
  }
  assert.ok((await lab.counter("P2", "sent")) > before, "what the earlier page sent counts");
});

test("on a phone the outcome of a press was out of sight", async (t) => {
  const { gateway, browser } = await scene(t, { viewport: { width: 390, height: 844 }, breaksConnections: true });
  const lab = await LabPage.open(browser, gateway.origin, "lab-phone");
  await lab.press("cut");
  await lab.judged();
  const [story, button] = await lab.page.evaluate(() =>
    [".story", "#fault-cut"].map((name) => {
      const { top, bottom } = document.querySelector(name).getBoundingClientRect();
      return { top, bottom, height: innerHeight };
    }),
  );
  for (const { top, bottom, height } of [story, button]) assert.ok(top >= 0 && bottom <= height, JSON.stringify({ story, button }));
  assert.ok(story.bottom <= button.top, "the story does not lie over the button");
});

test("a disabled button did not say why", async (t) => {
  const { gateway, browser } = await scene(t);
  const lab = await LabPage.open(browser, gateway.origin, "lab-buttons");
  await lab.aim("S1");
  const robbed = lab.page.locator("#fault-lose-ack");
  await until("the reason", async () => /choose P1 or P2/.test(await robbed.textContent()));
  assert.ok(await robbed.isDisabled());
  await lab.aim("P1");
  await until("what it does", async () => /stored, but you never hear/.test(await robbed.textContent()));
  assert.ok(await robbed.isEnabled());
});

test("the page named another process than the log", async (t) => {
  const { gateway, browser } = await scene(t);
  const lab = await LabPage.open(browser, gateway.origin, "lab-process");
  const logged = () => gateway.lines.filter((line) => line.startsWith("{")).map((line) => JSON.parse(line).fields);
  const { process } = await until("the log's line", () => logged().find((fields) => "process" in fields));
  await until("the process", async () => (await lab.page.textContent("#gateway")).includes(`process ${process},`));
});

test("two tabs had one name, and a reload left the room", async (t) => {
  const { gateway, browser } = await scene(t);
  const user = (page) => page.inputValue("#chat-user");
  const isIn = (page) => page.waitForSelector('.room-state[data-open="true"]');
  const first = await browser.page();
  await first.goto(`${gateway.origin}/#chat`);
  await first.fill("#chat-room", "workshop");
  await first.click("#chat-enter");
  await isIn(first);
  const name = await user(first);
  await first.reload();
  await isIn(first);
  assert.equal(await user(first), name);
  assert.match(await first.textContent(".room-state"), new RegExp(`${name} in workshop`));

  // A duplicate of the tab has a copy of what it keeps.
  const kept = await first.evaluate(() => Object.entries(sessionStorage));
  const second = await browser.page();
  await second.addInitScript((entries) => entries.forEach(([key, value]) => sessionStorage.setItem(key, value)), kept);
  await second.goto(`${gateway.origin}/#chat`);
  await isIn(second);
  assert.notEqual(await user(second), name);
  assert.match(await second.textContent(".room-state"), /in workshop/);
});
