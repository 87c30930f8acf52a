/**
 * The application behind a gateway's event handlers, as a test plays it: the requests come to a real process
 * (`support/application_process.js`), what it answers is said here.
 */
import assert from "node:assert/strict";

import { repositoryFile, startCommand } from "./processes.js";
import { until, within } from "./waiting.js";

/** Answers to `connect`; `grant` is the body, absent for none. */
export const accept = (grant, more) => ({ success: grant === undefined ? [] : [grant], ...more });

/** Answers to a user event; without arguments there is no reply. */
export const reply = (data, dataType, more) => ({ success: [Buffer.isBuffer(data) ? { base64: data.toString("base64") } : data, dataType], ...more });

/** Answers to either: no. */
export const refuse = (code, text, more) => ({ fail: [code, text], ...more });

/** Only the named kinds. */
export const ofKind = (kind) => (event) => event.kind === kind;

export class Application {
  /**
   * Starts one for these hubs, to be stopped after the gateway, which would wait for it else. Events of a hub that ends in `!`
   * are answered at once, and counted.
   */
  static async start(...hubs) {
    const application = new Application();
    application.events = [];
    application.preflights = [];
    application.turnedAway = [];
    application.cancelled = [];
    application.errors = [];
    application.answers = {};
    application.past = new Set();
    const script = repositoryFile("tests/sdk/js/support/application_process.js");
    const onLine = (stream, line) => {
      if (stream === "stdout") application.#hear(JSON.parse(line));
      else application.errors.push(line);
    };
    application.process = startCommand(process.execPath, [script, ...hubs], { onLine });
    await until("the application's start", () => application.url);
    return application;
  }

  /** The table of the gateway's configuration that sends it a hub's events. */
  toml(hub, more = "") {
    return `
      [[hubs."${hub}".event_handlers]]
      url_template = "${this.url}"
      user_event_pattern = "*"
      system_events = ["connect", "connected", "disconnected"]
      ${more}
    `;
  }

  /** Forgets what was, at the beginning of a test: sessions of an earlier one may still be heard of. */
  forget() {
    for (const { context } of this.events) this.past.add(context.connectionId);
    this.events.length = 0;
    this.preflights.length = 0;
    this.turnedAway.length = 0;
    this.cancelled.length = 0;
    this.answers = {};
  }

  /**
   * Says how events of a hub are answered from now on: by default with success. `answer` is an answer, or a function of the
   * event that gives one, perhaps later.
   */
  answer(hub, kind, answer) {
    this.answers[`${hub}/${kind}`] = answer;
  }

  /** Events of a hub, in the order of their arrival. */
  of(hub, ...kinds) {
    return this.events.filter((event) => event.hub === hub && (kinds.length === 0 || kinds.includes(event.kind)));
  }

  /** Waits until `count` events of these kinds have come and returns them. */
  async seen(hub, count, ...kinds) {
    await until(`${count} events (${kinds}) of ${hub}`, () => this.of(hub, ...kinds).length >= count);
    return this.of(hub, ...kinds);
  }

  /** How many events a counted hub has had, by kind. */
  async counts(hub) {
    this.counted = undefined;
    this.#say({ count: true });
    await until("the application's counts", () => this.counted);
    return this.counted[hub] ?? {};
  }

  /** From now on all events are answered 503, or not any more; `turnedAway` has their headers. */
  setDown(down) {
    this.#say({ down });
  }

  async stop() {
    if (!this.process) return;
    const { child, ended } = this.process;
    this.process = undefined;
    child.stdin.end();
    const end = await within("the application's end", ended);
    // The middleware says so of notes that are not its own.
    const errors = this.errors.filter((line) => !line.startsWith("Unexpected state format"));
    assert.deepEqual([end, errors], [{ code: 0, signal: null }, []], "the application ended badly");
  }

  #say(line) {
    this.process?.child.stdin.write(`${JSON.stringify(line)}\n`);
  }

  async #hear({ url, preflight, turnedAway, cancelled, counts, event }) {
    if (url) this.url = url;
    if (preflight) this.preflights.push(preflight);
    if (turnedAway) this.turnedAway.push(turnedAway);
    if (cancelled) this.cancelled.push(cancelled);
    if (counts) this.counted = counts;
    if (!event) return;
    if (!this.past.has(event.context.connectionId)) this.events.push(event);
    if (event.kind !== "connect" && event.kind !== "user") return;
    const answer = this.answers[`${event.hub}/${event.kind}`] ?? {};
    this.#say({ id: event.id, ...(typeof answer === "function" ? await answer(event) : answer) });
  }
}

/** A gate that what comes through waits at until it is opened. */
export class Gate {
  constructor() {
    this.waiting = 0;
    this.passed = new Promise((open) => (this.open = open));
  }

  async pass() {
    this.waiting++;
    await this.passed;
  }
}
