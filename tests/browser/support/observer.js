/**
 * An observer outside the page: the unmodified official client in a process of its own, over wss, in the lab's group.
 */
import assert from "node:assert/strict";
import { fileURLToPath } from "node:url";

import { startCommand } from "../../sdk/js/support/processes.js";
import { until, within } from "../../sdk/js/support/waiting.js";

export class Observer {
  /** Joins `group` at `gateway`; it ends before the gateway is stopped. */
  static async join(gateway, group) {
    const observer = new Observer();
    /** Numbers as they came, by publisher. */
    observer.numbers = new Map();
    observer.errors = [];
    const onLine = (stream, line) => {
      if (stream === "stdout") observer.#hear(JSON.parse(line));
      else observer.errors.push(line);
    };
    const script = fileURLToPath(new URL("observer_process.js", import.meta.url));
    // Node trusts the gateway's certificate as it would trust an authority's.
    const env = { NODE_EXTRA_CA_CERTS: gateway.certificateFile };
    const process_ = startCommand(process.execPath, [script, gateway.origin, group], { env, onLine });
    gateway.welcome(async () => {
      process_.child.stdin.end();
      await within("the observer's end", process_.ended);
    });
    process_.ended.then(() => (observer.hasEnded = true), () => (observer.hasEnded = true));
    await until("the observer's join", () => {
      assert.ok(!observer.hasEnded, observer.errors.join("\n"));
      return observer.hasJoined;
    });
    return observer;
  }

  /** Waits until `count` messages of a publisher have come: exactly 1 to `count`, each once and in order. */
  async assertExactly(publisher, count) {
    const came = () => this.numbers.get(publisher) ?? [];
    await until(`${count} messages of ${publisher} at the observer`, () => came().length >= count);
    assert.deepEqual(came(), Array.from({ length: count }, (_, index) => index + 1));
    assert.equal(this.sessions, 1, "the observer kept its session");
  }

  #hear({ joined, session, message }) {
    if (joined) this.hasJoined = true;
    if (session) this.sessions = session;
    if (message) this.numbers.set(message.publisher, [...(this.numbers.get(message.publisher) ?? []), message.number]);
  }
}
