/**
 * The page for everybody: axe finds nothing, the keyboard reaches and works everything, nothing is wider than a phone.
 */
import assert from "node:assert/strict";
import { test } from "node:test";

import axe from "axe-core";

import { until } from "../../sdk/js/support/waiting.js";
import { Browser } from "../support/browser.js";
import { DevGateway } from "../support/gateway.js";

const SIZES = { desktop: { width: 1280, height: 900 }, phone: { width: 360, height: 780 } };

/** Shows a view with something in it. */
async function show(page, gateway, view) {
  await page.goto(`${gateway.origin}/#${view}`);
  if (view === "lab") {
    await page.waitForSelector('.lab[data-ready="true"]');
    await page.click("#fault-cut:not([disabled])");
    await page.waitForSelector('.story-box[data-state="good"]');
    await page.click("#fault-reload");
    await page.waitForSelector(".reload:not([hidden])");
    for (const summary of await page.locator("summary").all()) await summary.click();
  } else {
    await page.click("#chat-enter");
    await page.waitForSelector('.room-state[data-open="true"]');
    await page.fill("#chat-text", "Hello");
    await page.press("#chat-text", "Enter");
    await page.waitForSelector('.ticks[data-step="acknowledged"]');
  }
}

for (const colorScheme of ["light", "dark"]) {
  for (const [name, viewport] of Object.entries(SIZES)) {
    test(`axe has nothing to say, ${colorScheme}, ${name}`, async (t) => {
      const gateway = await DevGateway.start(t, { store: "memory" });
      const browser = await Browser.launch(gateway, { colorScheme, viewport });
      for (const view of ["lab", "chat"]) {
        const page = await browser.page();
        await show(page, gateway, view);
        assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), colorScheme);
        await page.evaluate(axe.source);
        const { violations, passes } = await page.evaluate(() => globalThis.axe.run());
        const told = violations.map(({ id, nodes }) => `${view}: ${id}: ${nodes.map(({ html, any }) => `${html} ${any[0]?.message ?? ""}`).join("; ")}`);
        assert.deepEqual(told, []);
        assert.ok(passes.length > 10, "axe looked");
        const width = await page.evaluate(() => document.documentElement.scrollWidth);
        assert.ok(width <= viewport.width, `${view} is ${width} pixels wide`);
      }
    });
  }
}

test("the keyboard alone", async (t) => {
  const gateway = await DevGateway.start(t, { store: "memory" });
  const browser = await Browser.launch(gateway, { reducedMotion: "reduce" });
  const page = await browser.page();
  await page.goto(gateway.origin);
  await page.waitForSelector('.lab[data-ready="true"]');

  const focused = () =>
    page.evaluate(() => {
      const element = document.activeElement;
      const ring = element.matches('[type="radio"]') ? element.nextElementSibling : element;
      const { outlineStyle, outlineWidth } = getComputedStyle(ring);
      const isVisible = outlineStyle !== "none" && parseFloat(outlineWidth) >= 2;
      return { name: element.id || element.getAttribute("href") || element.name || element.textContent.trim(), isVisible };
    });
  const tabTo = async (wanted) => {
    for (let steps = 0; steps < 60; steps++) {
      await page.keyboard.press("Tab");
      const { name, isVisible } = await focused();
      assert.ok(isVisible, `${name} shows that it has the focus`);
      if (name === wanted) return;
    }
    assert.fail(`the keyboard did not reach ${wanted}`);
  };

  await tabTo("Skip to the content");
  await tabTo("#chat");
  await tabTo("theme");
  const theme = () => page.evaluate(() => document.documentElement.dataset.theme);
  await page.keyboard.press("Space");
  await page.keyboard.press("Space");
  assert.equal(await theme(), "dark");
  await tabTo("Pause the drawing");
  await page.keyboard.press("Space");
  await page.waitForSelector('button[aria-pressed="true"]');
  await tabTo("target");
  await page.keyboard.press("ArrowLeft");
  assert.equal(await page.evaluate(() => document.activeElement.value), "P2");
  await tabTo("fault-cut");
  await page.keyboard.press("Enter");
  await gateway.fault("cut");
  await page.waitForSelector('.story-box[data-state="good"]');
  assert.match(await page.textContent('.story[aria-live="polite"]'), /^Socket of P2\scut/);
  await tabTo("fault-lose-ack");
  await page.keyboard.press("Space");
  await gateway.fault("lose-next-ack");
  for (const id of ["fault-flood", "fault-reload", "rate"]) await tabTo(id);

  await page.keyboard.press("Shift+Tab");
  await until("the way back to the views", async () => {
    await page.keyboard.press("Shift+Tab");
    return (await focused()).name === "#chat";
  });
  await page.keyboard.press("Enter");
  // The view that had the focus goes away with it.
  await page.waitForSelector("#chat-enter");
  await tabTo("chat-enter");
  await page.keyboard.press("Enter");
  await page.waitForSelector("#chat-text:focus");
  await page.keyboard.type("By hand");
  await page.keyboard.press("Enter");
  await page.waitForSelector('.ticks[data-step="acknowledged"]');
});
