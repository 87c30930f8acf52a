/**
 * Takes the README's pictures of the page: `npm run screenshots`. It wants what the tests want.
 */
import { mkdir, rm, writeFile } from "node:fs/promises";

import { repositoryFile } from "../../sdk/js/support/processes.js";
import { until } from "../../sdk/js/support/waiting.js";
import { Browser } from "./browser.js";
import { DevGateway } from "./gateway.js";
import { LabPage } from "./lab_page.js";

const FOLDER = repositoryFile("web-demo/screenshots");
const SIZES = { desktop: { width: 1280, height: 1060 }, phone: { width: 390, height: 844 } };
const QUALITY = 82;

/** What to do at the end, the latest first: stands in for a test. */
const cleanups = [];
const t = { after: (clean) => cleanups.unshift(clean) };

async function picture(page, name) {
  const session = await page.context().newCDPSession(page);
  const { data } = await session.send("Page.captureScreenshot", { format: "webp", quality: QUALITY });
  await writeFile(`${FOLDER}/${name}.webp`, Buffer.from(data, "base64"));
}

async function lab(gateway, colorScheme, size) {
  const browser = await Browser.launch(gateway, { colorScheme, viewport: SIZES[size] });
  const shown = await LabPage.open(browser, gateway.origin, `lab-${colorScheme}-${size}`);
  const published = async (count) =>
    until("messages to be seen", async () => (await shown.counter("P1", "sent")) >= count);
  await published(8);
  await shown.press("cut");
  await shown.judged();
  await published(36);
  await shown.aim("P2");
  await shown.press("lose-ack");
  await shown.judged();
  await published(44);
  if (size === "phone") await shown.page.evaluate(() => document.querySelector(".verdict").scrollIntoView());
  await picture(shown.page, `lab-${size}-${colorScheme}`);
}

async function chat(gateway, colorScheme, size) {
  const browser = await Browser.launch(gateway, { colorScheme, viewport: SIZES[size] });
  const enter = async (user) => {
    const page = await browser.page();
    await page.goto(`${gateway.origin}/#chat`);
    await page.fill("#chat-user", user);
    await page.fill("#chat-room", `${colorScheme}-${size}`);
    await page.click("#chat-enter");
    await page.waitForSelector('.room-state[data-open="true"]');
    return page;
  };
  const say = async (page, text) => {
    await page.fill("#chat-text", text);
    await page.press("#chat-text", "Enter");
    await page.locator(".mine", { hasText: text }).locator("text=received by").waitFor();
  };
  const [ada, grace] = [await enter("Ada"), await enter("Grace")];
  await say(grace, "The train went through a tunnel. Did I miss anything?");
  await say(ada, "Three messages. They are in your session.");
  await say(grace, "Here they are. Each once.");
  await picture(grace, `chat-${size}-${colorScheme}`);
}

await rm(FOLDER, { recursive: true, force: true });
await mkdir(FOLDER, { recursive: true });
try {
  const gateway = await DevGateway.start(t);
  for (const colorScheme of ["light", "dark"]) {
    for (const size of Object.keys(SIZES)) {
      await lab(gateway, colorScheme, size);
      await chat(gateway, colorScheme, size);
    }
  }
} finally {
  for (const clean of cleanups) await clean();
}
