/**
 * Debian's Chromium with a fresh profile, and pages whose errors fail the test.
 */
import assert from "node:assert/strict";
import { existsSync } from "node:fs";

import { chromium } from "playwright-core";

import { PATIENCE_MS } from "../../sdk/js/support/waiting.js";

const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

/** Chromium's own words for a connection that a test broke on purpose. */
const BROKEN_CONNECTION = /^(WebSocket connection to '.*' failed|Failed to load resource: net::ERR_)/;

export function chromiumPath() {
  const found = process.env.ONCEWIRE_CHROMIUM ?? "/usr/bin/chromium";
  assert.ok(existsSync(found), `${found} is not there: install Chromium, or name it in ONCEWIRE_CHROMIUM`);
  return found;
}

export class Browser {
  /** A browser that trusts the key of `gateway`'s certificate, and no other; closed before the gateway is stopped. */
  static async launch(gateway, { breaksConnections = false, ...contextOptions } = {}) {
    const browser = new Browser();
    browser.errors = [];
    browser.breaksConnections = breaksConnections;
    const args = [...FLAGS, `--ignore-certificate-errors-spki-list=${gateway.keyHash}`];
    browser.chromium = await chromium.launch({ executablePath: chromiumPath(), args });
    gateway.welcome(async () => {
      await browser.chromium.close();
      assert.deepEqual(browser.errors, [], "the pages had errors");
    });
    browser.context = await browser.chromium.newContext(contextOptions);
    browser.context.setDefaultTimeout(PATIENCE_MS);
    return browser;
  }

  async page() {
    const page = await this.context.newPage();
    page.on("pageerror", (error) => this.errors.push(error.stack ?? error.message));
    page.on("console", (message) => {
      if (!["error", "warning"].includes(message.type())) return;
      const text = message.text();
      if (this.breaksConnections && BROKEN_CONNECTION.test(text)) return;
      this.errors.push(text.replace(/(access_token|awps_reconnection_token)=[^&' ]*/g, "$1=…"));
    });
    return page;
  }
}
