/**
 * Cuts at every byte offset of a publish/ack exchange and of a recovery, in both directions: whatever the offset, the
 * session lives on, the publish is executed once, and everything is delivered once and in order.
 *
 * Each offset is a small session of its own behind a proxy of its own; an observer beside the proxies sees them all.
 */
import assert from "node:assert/strict";
import { test } from "node:test";

import { Client, NO_RETRIES } from "../support/client.js";
import { Gateway } from "../support/gateway.js";
import { CUTS, DOWN, ProxyProcess, UP } from "../support/proxy.js";
import { inParallel, until } from "../support/waiting.js";

/** Sessions at a time. A try whose handshake was cut waits a second in the SDK, so many of them must wait together. */
const WIDTH = 64;

const ACK_ID = 100;

class Sweep {
  static async start(t) {
    const sweep = new Sweep();
    sweep.t = t;
    sweep.gateway = await Gateway.start(t);
    sweep.proxies = ProxyProcess.start(t);
    sweep.observer = await Client.connect(t, sweep.gateway);
    sweep.publisher = await Client.connect(t, sweep.gateway);
    sweep.observed = new Map();
    sweep.observer.sdk.on("group-message", ({ message }) => {
      const { group, data } = message;
      if (!sweep.observed.has(group)) sweep.observed.set(group, []);
      sweep.observed.get(group).push(data);
    });
    sweep.sessions = 0;
    return sweep;
  }

  /** A client in a group of its own, which the observer is in too. */
  async session() {
    const proxy = await this.proxies.open(this.gateway);
    const group = `g${String(++this.sessions).padStart(6, "0")}`;
    await this.observer.join(group);
    const client = await Client.connect(this.t, proxy, { ...NO_RETRIES, token: { groups: [group], roles: ROLES } });
    return { proxy, group, client };
  }

  /** Sends a last message and checks that exactly `expected` came before it, at the client and at the observer. */
  async finish({ proxy, group, client }, expected, what) {
    await client.sendUntilDone(group, "end", ACK_ID + 1);
    const count = expected.length + 1;
    assert.deepEqual(await client.received(group, count), [...expected, "end"], what);
    await until(`the observer's messages, ${what}`, () => (this.observed.get(group) ?? []).length >= count);
    assert.deepEqual(this.observed.get(group), [...expected, "end"], what);
    assert.equal(client.connections.length, 1, `the session was replaced, ${what}`);
    assert.equal(client.disconnections, 0, what);
    const report = await proxy.report();
    client.stop();
    await until("stopped", () => client.stopped);
    await proxy.close();
    return report;
  }
}

const ROLES = ["webpubsub.sendToGroup"];

/** Bytes that a connection had forwarded in a direction. */
function bytes(report, connection, direction) {
  return report.connections[connection - 1][`${direction}_bytes`];
}

test("a cut at every byte of a publish and its ack (22.1 #22)", async (t) => {
  const sweep = await Sweep.start(t);

  // Once without a fault, to learn how long the exchange is.
  const lengths = {};
  {
    const session = await sweep.session();
    const before = await session.proxy.report();
    const result = await session.client.sendUntilDone(session.group, "once", ACK_ID);
    assert.deepEqual([result.isDuplicated, result.tries], [false, 1]);
    // The proxy counts what it has forwarded a moment after the client may have it.
    await until("the proxy has counted the publish and its ack", async () => {
      const after = await session.proxy.report();
      for (const direction of [UP, DOWN]) lengths[direction] = bytes(after, 1, direction) - bytes(before, 1, direction);
      return lengths[UP] > 0 && lengths[DOWN] > 0;
    });
    await sweep.finish(session, ["once"], "without a fault");
  }

  const cases = [];
  for (const action of CUTS) {
    for (const direction of [UP, DOWN]) {
      for (let offset = 0; offset < lengths[direction]; offset++) cases.push({ action, direction, offset });
    }
  }
  const seen = { duplicates: 0, repeated: 0 };
  await inParallel(cases, WIDTH, async ({ action, direction, offset }) => {
    const what = `${action} after ${offset} bytes ${direction}`;
    const session = await sweep.session();
    await session.proxy.faultAfter(direction, offset, action);
    const result = await session.client.sendUntilDone(session.group, "once", ACK_ID);
    const report = await sweep.finish(session, ["once"], what);
    assert.equal(report.faults, 1, what);
    seen.duplicates += result.isDuplicated ? 1 : 0;
    seen.repeated += result.tries > 1 ? 1 : 0;
  });
  t.diagnostic(`${cases.length} offsets: ${JSON.stringify(lengths)}, ${JSON.stringify(seen)}`);
  // Cut on its way up: executed by the repetition. Cut on its way down: executed before, a duplicate when repeated.
  assert.ok(seen.duplicates > lengths[DOWN], "a sweep without duplicates has not cut any acks");
  assert.ok(seen.repeated > seen.duplicates, "a sweep without repetitions has not cut any publishes");
});

test("a cut at every byte of a recovery (22 #4; 22.1 #5, #22)", async (t) => {
  const sweep = await Sweep.start(t);
  const expected = ["one", "two", "three", "once"];

  // Three messages are replayed, of which the client has seen two; then it publishes.
  const recover = async (fault) => {
    const session = await sweep.session();
    const { client, group, proxy } = session;
    if (fault) await proxy.plan(2, fault);
    await sweep.publisher.send(group, "one");
    await sweep.publisher.send(group, "two");
    await client.received(group, 2);
    // The third one is on its way when the socket dies.
    await proxy.stall(DOWN);
    await sweep.publisher.send(group, "three");
    await proxy.strike("client_dies");
    await proxy.resume(DOWN);
    await client.received(group, 3);
    const result = await client.sendUntilDone(group, "once", ACK_ID);
    await client.received(group, 4);
    return { session, result };
  };

  // A sequence ack sent at once may or may not shorten the replay: the longest of some exchanges is swept.
  const lengths = { [UP]: 0, [DOWN]: 0 };
  for (let run = 0; run < 5; run++) {
    const { session } = await recover();
    const report = await session.proxy.report();
    for (const direction of [UP, DOWN]) {
      lengths[direction] = Math.max(lengths[direction], bytes(report, 2, direction));
    }
    await sweep.finish(session, expected, "without a fault");
  }

  const cases = [];
  for (const direction of [UP, DOWN]) {
    for (let offset = 0; offset < lengths[direction]; offset++) {
      cases.push({ direction, after_bytes: offset, action: CUTS[offset % CUTS.length] });
    }
  }
  const connections = new Map();
  await inParallel(cases, WIDTH, async (fault) => {
    const what = `${fault.action} after ${fault.after_bytes} bytes ${fault.direction} of the recovery`;
    const { session } = await recover(fault);
    const report = await sweep.finish(session, expected, what);
    connections.set(report.accepted, (connections.get(report.accepted) ?? 0) + 1);
  });
  t.diagnostic(`${cases.length} offsets: ${JSON.stringify(lengths)}, connections: ${JSON.stringify([...connections])}`);
});
