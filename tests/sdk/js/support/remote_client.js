/**
 * An official client in a process of its own, which it is told what to do through: one JSON object in a line, as
 * `support/participant.py` of the Python tests describes them.
 */
import assert from "node:assert/strict";
import path from "node:path";

import { clientUrl } from "./client.js";
import { python, repositoryFile, startCommand } from "./processes.js";
import { until, within } from "./waiting.js";

export class RemoteClient {
  /** Connects the `"sync"` or `"async"` client of Python. `token` are the claims; it is closed after test `t`. */
  static async python(t, via, kind, token = {}) {
    const env = { PYTHONPATH: path.dirname(repositoryFile("tests/sdk/python/support")) };
    const url = await clientUrl(via.endpoint, token);
    return RemoteClient.#connect(t, via, python(), ["-m", "support.participant", kind, url], env);
  }

  /** Connects the client of JavaScript. */
  static async javascript(t, via, token = {}) {
    const url = await clientUrl(via.endpoint, token);
    return RemoteClient.#connect(t, via, process.execPath, [repositoryFile("tests/sdk/js/support/participant.js"), url]);
  }

  static async #connect(t, via, command, args, env = {}) {
    const client = new RemoteClient();
    client.messages = [];
    client.errors = [];
    client.done = 0;
    client.asked = 0;
    const onLine = (stream, line) => {
      if (stream === "stdout") client.#hear(JSON.parse(line));
      else client.errors.push(line);
    };
    client.process = startCommand(command, args, { env: { ...env, ...via.trust }, onLine });
    client.process.ended.then(() => (client.hasEnded = true), () => (client.hasEnded = true));
    t.after(async () => {
      client.process.child.stdin.end();
      const end = await within("the end of a client", client.process.ended);
      assert.deepEqual(end, { code: 0, signal: null }, client.errors.join("\n"));
    });
    await client.#until("connected", () => client.connected);
    return client;
  }

  /** Joins a group. */
  join(group) {
    return this.#ask({ join: group });
  }

  /** Publishes; bytes are given in base64. */
  send(group, dataType, data) {
    return this.#ask({ send: group, dataType, data });
  }

  /** Waits until `count` messages have come and returns them in the order of their sequence ids. */
  async received(count) {
    await this.#until(`${count} messages at a client`, () => this.messages.length >= count);
    return this.messages.toSorted((one, other) => one.sequenceId - other.sequenceId);
  }

  async #ask(command) {
    const turn = ++this.asked;
    this.process.child.stdin.write(`${JSON.stringify(command)}\n`);
    await this.#until("an answer of a client", () => this.done >= turn);
  }

  #until(what, condition) {
    return until(what, () => {
      assert.ok(!this.hasEnded, `a client ended: ${this.errors.join("\n")}`);
      return condition();
    });
  }

  #hear({ connected, done, message }) {
    if (connected) this.connected = true;
    else if (done) this.done++;
    else this.messages.push(message);
  }
}
