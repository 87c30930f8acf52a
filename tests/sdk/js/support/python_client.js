/**
 * An official Python client in a process of its own.
 */
import assert from "node:assert/strict";
import path from "node:path";

import { clientUrl } from "./client.js";
import { python, repositoryFile, startCommand } from "./processes.js";
import { until, within } from "./waiting.js";

export class PythonClient {
  /** Connects the `"sync"` or `"async"` client. `token` are the claims; it is closed after test `t`. */
  static async connect(t, via, kind, token = {}) {
    const client = new PythonClient();
    client.messages = [];
    client.errors = [];
    client.done = 0;
    client.asked = 0;
    const onLine = (stream, line) => {
      if (stream === "stdout") client.#hear(JSON.parse(line));
      else client.errors.push(line);
    };
    const url = await clientUrl(via.endpoint, token);
    const env = { PYTHONPATH: path.dirname(repositoryFile("tests/sdk/python/support")) };
    client.process = startCommand(python(), ["-m", "support.participant", kind, url], { env, onLine });
    client.process.ended.then(() => (client.hasEnded = true), () => (client.hasEnded = true));
    t.after(async () => {
      client.process.child.stdin.end();
      const end = await within("the end of a Python client", client.process.ended);
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
    await this.#until(`${count} messages at a Python client`, () => this.messages.length >= count);
    return this.messages.toSorted((one, other) => one.sequenceId - other.sequenceId);
  }

  async #ask(command) {
    const turn = ++this.asked;
    this.process.child.stdin.write(`${JSON.stringify(command)}\n`);
    await this.#until("an answer of a Python client", () => this.done >= turn);
  }

  #until(what, condition) {
    return until(what, () => {
      assert.ok(!this.hasEnded, `a Python client ended: ${this.errors.join("\n")}`);
      return condition();
    });
  }

  #hear({ connected, done, message }) {
    if (connected) this.connected = true;
    else if (done) this.done++;
    else this.messages.push(message);
  }
}
