/**
 * Proxies that break connections at exact bytes: the `oncewire-proxy` process and its line protocol.
 */
import assert from "node:assert/strict";

import { start } from "./processes.js";
import { PATIENCE_MS, within } from "./waiting.js";

export const UP = "client_to_server";
export const DOWN = "server_to_client";

/** The ways to end a connection of which the client hears, with or without the server. */
export const CUTS = ["cut_rst", "cut_fin", "client_dies"];

export class ProxyProcess {
  /** Starts the process; it ends after test `t`, and all proxies with it. */
  static start(t) {
    const proxies = new ProxyProcess();
    proxies.replies = new Map();
    proxies.lastId = 0;
    const onLine = (stream, line) => {
      if (stream === "stdout") proxies.settle(JSON.parse(line));
    };
    proxies.process = start("oncewire-proxy", [], { onLine });
    proxies.process.ended.catch((error) => proxies.fail(error));
    proxies.process.ended.then(() => proxies.fail(new Error("oncewire-proxy ended")), () => {});
    t.after(async () => {
      proxies.process.child.stdin.end();
      await within("the proxy's end", proxies.process.ended);
    });
    return proxies;
  }

  /** Opens a proxy before `gateway`. */
  async open(gateway) {
    const { proxy, address } = await this.ask({ do: "open", upstream: gateway.address });
    return new Proxy(this, proxy, address);
  }

  async ask(command) {
    const id = ++this.lastId;
    const reply = new Promise((resolve) => this.replies.set(id, resolve));
    this.process.child.stdin.write(`${JSON.stringify({ id, ...command })}\n`);
    const answer = await within(`the proxy's reply to ${command.do}`, reply, PATIENCE_MS + 10_000);
    assert.ok(answer.ok, `${JSON.stringify(command)}: ${answer.error}`);
    return answer;
  }

  settle(reply) {
    this.replies.get(reply.id)?.(reply);
    this.replies.delete(reply.id);
  }

  fail(error) {
    for (const id of [...this.replies.keys()]) this.settle({ id, ok: false, error: error.message });
  }
}

export class Proxy {
  constructor(process, proxy, address) {
    Object.assign(this, { process, proxy, address });
  }

  /** What a client dials instead of the gateway. */
  get endpoint() {
    return `http://${this.address}`;
  }

  ask(command) {
    return this.process.ask({ proxy: this.proxy, ...command });
  }

  /** Faults for the `connection`-th connection, offsets from its start. */
  plan(connection, ...faults) {
    return this.ask({ do: "plan", connection, faults });
  }

  /** A fault for the current connection, its offset from now. */
  faultAfter(direction, after_bytes, action) {
    return this.ask({ do: "fault_after", fault: { direction, after_bytes, action } });
  }

  random(random) {
    return this.ask({ do: "random", random });
  }

  /** Strikes all connections now. */
  strike(action) {
    return this.ask({ do: "strike", action });
  }

  stall(direction) {
    return this.ask({ do: "stall", direction });
  }

  resume(direction) {
    return this.ask({ do: "resume", direction });
  }

  /** Refuses the next `count` connections, all when absent, none when 0. */
  refuse(count) {
    return this.ask({ do: "refuse", count });
  }

  async report() {
    return (await this.ask({ do: "report" })).report;
  }

  wait(reached) {
    return this.ask({ do: "wait", reached, timeout_ms: PATIENCE_MS });
  }

  close() {
    return this.ask({ do: "close" });
  }
}
