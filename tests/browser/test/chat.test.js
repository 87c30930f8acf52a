/**
 * The chat between two pages.
 */
import assert from "node:assert/strict";
import { test } from "node:test";

import { Browser } from "../support/browser.js";
import { DevGateway } from "../support/gateway.js";

async function enter(browser, gateway, user, room) {
  const page = await browser.page();
  await page.goto(`${gateway.origin}/#chat`);
  await page.fill("#chat-user", user);
  await page.fill("#chat-room", room);
  await page.click("#chat-enter");
  await page.waitForSelector('.room-state[data-open="true"]');
  return page;
}

async function say(page, text) {
  await page.fill("#chat-text", text);
  await page.press("#chat-text", "Enter");
}

/** The ticks beside a page's own message. */
function ticks(page, text) {
  return page.locator(".sayings .mine", { hasText: text }).locator(".ticks");
}

test("ticks go from acknowledged to received when somebody else has the message", async (t) => {
  const gateway = await DevGateway.start(t);
  const browser = await Browser.launch(gateway);
  const ada = await enter(browser, gateway, "Ada", "lobby");

  await say(ada, "Is anybody there?");
  await ticks(ada, "Is anybody there?").locator('xpath=self::*[@data-step="acknowledged"]').waitFor();

  const grace = await enter(browser, gateway, "Grace", "lobby");
  await say(ada, "<b>And now?</b>");
  await ticks(ada, "And now?").locator('xpath=self::*[@data-step="received"]').waitFor();
  assert.match(await ticks(ada, "And now?").textContent(), /received by Grace/);
  assert.equal(await grace.locator(".sayings .theirs span").textContent(), "<b>And now?</b>");

  await say(grace, "I am.");
  await ticks(grace, "I am.").locator('xpath=self::*[@data-step="received"]').waitFor();
  assert.equal(await ada.locator(".sayings .theirs span").textContent(), "I am.");
});

test("rooms are separate", async (t) => {
  const gateway = await DevGateway.start(t);
  const browser = await Browser.launch(gateway);
  const ada = await enter(browser, gateway, "Ada", "lobby");
  const linus = await enter(browser, gateway, "Linus", "kitchen");
  const grace = await enter(browser, gateway, "Grace", "lobby");
  await say(ada, "Only for the lobby");
  await grace.locator(".sayings .theirs").waitFor();
  await say(linus, "Only for the kitchen");
  await ticks(linus, "Only for the kitchen").locator('xpath=self::*[@data-step="acknowledged"]').waitFor();
  assert.equal(await linus.locator(".sayings .theirs").count(), 0);
  assert.equal(await ada.locator(".sayings .theirs").count(), 0);
});
