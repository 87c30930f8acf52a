/**
 * The reliability lab in a browser's page: reads its counters, presses its buttons.
 */
import assert from "node:assert/strict";

import { until } from "../../sdk/js/support/waiting.js";

export const PUBLISHERS = ["P1", "P2"];
export const SUBSCRIBERS = ["S1", "S2"];

export class LabPage {
  /** Opens the lab at `origin`, in a group of the test's choice. */
  static async open(browser, origin, group) {
    const page = await browser.page();
    // A reload keeps the tab's group.
    await page.addInitScript((name) => sessionStorage.setItem("oncewire/lab-group", name), group);
    await page.goto(origin);
    const lab = new LabPage(page);
    await lab.ready();
    return lab;
  }

  constructor(page) {
    this.page = page;
  }

  ready() {
    return this.page.waitForSelector('.lab[data-ready="true"]');
  }

  /** A counter on the card of a participant. */
  async counter(participant, name) {
    return this.#value(`[data-participant="${participant}"] [data-counter="${name}"]`);
  }

  /** `lost`, `duplicated`, `out-of-order` or `delivered`, of both subscribers. */
  total(name) {
    return this.#value(`[data-total="${name}"]`);
  }

  async connectionId(participant) {
    return this.page.getAttribute(`[data-participant="${participant}"] [data-session]`, "data-session");
  }

  /** Who a publisher is in its messages. */
  publisherId(participant) {
    return this.page.getAttribute(`[data-participant="${participant}"]`, "data-publisher");
  }

  boot() {
    return this.page.getAttribute("#gateway", "data-boot");
  }

  /** The words on what happened last. */
  async story() {
    return (await this.page.textContent(".story")).replaceAll("\u00a0", " ");
  }

  /** Chooses whose socket the next fault hits. */
  async aim(participant) {
    await this.page.check(`input[name="target"][value="${participant}"]`);
  }

  async press(button) {
    await this.page.click(`#fault-${button}:not([disabled])`);
  }

  setRate(perSecond) {
    return this.page.selectOption("#rate", String(perSecond));
  }

  /** Waits until the page has judged its latest incident, and returns the story. */
  async judged() {
    await this.page.waitForSelector('.story-box:is([data-state="good"], [data-state="bad"], [data-state="failed"])');
    return this.story();
  }

  /** Stops publishing and waits until everything was acknowledged and delivered as far as the page knows. */
  async settle() {
    await this.setRate(0);
    // What was due before is published and counted by then.
    const refreshes = async () => Number(await this.page.getAttribute(".lab", "data-refreshes"));
    const before = await refreshes();
    await until("fresh counters", async () => (await refreshes()) >= before + 2);
    await until("everything acknowledged and delivered", async () => {
      const outboxes = await Promise.all(PUBLISHERS.map((name) => this.counter(name, "outbox")));
      const waiting = await Promise.all(SUBSCRIBERS.map((name) => this.counter(name, "waiting")));
      return [...outboxes, ...waiting].every((count) => count === 0);
    });
  }

  /** The page's own verdict is spotless. */
  async assertSpotless() {
    for (const name of ["lost", "duplicated", "out-of-order"]) {
      assert.equal(await this.total(name), 0, `${name}: ${await this.story()}`);
    }
    for (const name of SUBSCRIBERS) assert.equal(await this.counter(name, "gaps"), 0, `gaps at ${name}`);
  }

  async #value(selector) {
    return Number(await this.page.getAttribute(selector, "data-value"));
  }
}
