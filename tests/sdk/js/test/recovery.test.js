/**
 * A session outlives its socket: cuts, half-open connections, take-over, refused recoveries, restarts of the gateway.
 * The numbers in the names are the points of the protocol checklist that a test covers.
 */
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { test } from "node:test";

import { ALL_GROUPS, Client, NO_RETRIES, clientUrl } from "../support/client.js";
import { ACCESS_KEY, Gateway } from "../support/gateway.js";
import { CUTS, DOWN, ProxyProcess, UP } from "../support/proxy.js";
import { sleep, until, within } from "../support/waiting.js";

const jwt = createRequire(import.meta.resolve("@azure/web-pubsub"))("jsonwebtoken");

/** The token's groups let a test watch without joins of its own. */
const IN_G = { token: { groups: ["g"], roles: ALL_GROUPS } };

async function setUp(t, options) {
  const gateway = await Gateway.start(t, options);
  const proxy = await ProxyProcess.start(t).open(gateway);
  return { gateway, proxy };
}

/** The socket that the SDK uses right now; observed, never touched. */
const socketOf = (client) => client.sdk._wsClient._socket;

for (const cut of CUTS) {
  test(`${cut}: what was published meanwhile arrives after the recovery, once and in order (22 #4, #9; 22.1 #5, #6, #12)`, async (t) => {
    const { gateway, proxy } = await setUp(t);
    const sender = await Client.connect(t, gateway);
    const client = await Client.connect(t, proxy, IN_G);
    for (let number = 1; number <= 10; number++) await sender.send("g", `${number}`);
    await client.received("g", 10);

    await proxy.refuse();
    await proxy.strike(cut);
    await proxy.wait({ stopped: 1, refused: 1 });
    for (let number = 11; number <= 13; number++) await sender.send("g", `${number}`);
    assert.equal(client.texts("g").length, 10);
    await proxy.refuse(0);

    await client.received("g", 13);
    await sender.send("g", "14");
    assert.deepEqual(await client.received("g", 14), Array.from({ length: 14 }, (_, index) => `${index + 1}`));
    assert.deepEqual(client.messages.map(({ sequenceId }) => sequenceId), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
    assert.equal(client.disconnections, 0);
    assert.equal(client.connections.length, 1, "no second connected event");
    assert.equal((await proxy.report()).accepted, 2);
  });
}

test("an ack id that was executed before the drop is a duplicate after it (22 #6; 22.1 #4)", async (t) => {
  const { gateway, proxy } = await setUp(t);
  const receiver = await Client.connect(t, gateway, IN_G);
  const client = await Client.connect(t, proxy, NO_RETRIES);
  await client.send("g", "once", { ackId: 5 });
  const before = socketOf(client);
  await proxy.strike("cut_rst");
  await until("another socket", () => socketOf(client) !== before && socketOf(client).readyState === 1);
  assert.deepEqual(await client.send("g", "once", { ackId: 5 }), { ackId: 5, isDuplicated: true });
  await client.send("g", "end");
  assert.deepEqual(await receiver.received("g", 2), ["once", "end"]);
  assert.equal(client.connections.length, 1);
});

test("memberships and permissions survive a recovery (22 #9)", async (t) => {
  const { gateway, proxy } = await setUp(t);
  const sender = await Client.connect(t, gateway);
  const client = await Client.connect(t, proxy, { token: { roles: ["webpubsub.joinLeaveGroup.a"] }, ...NO_RETRIES });
  await client.join("a");
  const before = socketOf(client);
  await proxy.strike("cut_fin");
  await until("another socket", () => socketOf(client) !== before && socketOf(client).readyState === 1);
  await sender.send("a", "1");
  assert.deepEqual(await client.received("a", 1), ["1"]);
  await assert.rejects(client.join("b"), ({ errorDetail }) => errorDetail.name === "Forbidden");
  await client.leave("a");
  await sender.send("a", "2");
  await client.join("a");
  await sender.send("a", "3");
  assert.deepEqual(await client.received("a", 2), ["1", "3"]);
});

test("a recovery takes over a socket that looks alive, and the old one is cut (22 #3; 22.1 #6)", async (t) => {
  const { gateway, proxy } = await setUp(t);
  const sender = await Client.connect(t, gateway);
  const client = await Client.connect(t, proxy, IN_G);
  await proxy.strike("client_dies");
  await until("the gateway's cut of the old socket", async () => {
    return (await proxy.report()).connections[0].survivor_closed;
  });
  await sender.send("g", "to the new socket");
  assert.deepEqual(await client.received("g", 1), ["to the new socket"]);
  assert.equal(client.disconnections, 0);
});

test("a client whose server side died silently finds out by its keepalive, and recovers (22 #1; 22.1 #12)", async (t) => {
  const { gateway, proxy } = await setUp(t);
  const sender = await Client.connect(t, gateway);
  const client = await Client.connect(t, proxy, { ...IN_G, keepAliveIntervalInMs: 100, keepAliveTimeoutInMs: 1_000 });
  await proxy.strike("server_dies");
  await sender.send("g", "while it was deaf");
  // The client closes without a code; nobody is there to answer, so it takes its WebSocket library 30 s to give up.
  assert.deepEqual(await client.received("g", 1), ["while it was deaf"]);
  assert.equal(client.disconnections, 0);
});

for (const direction of [UP, DOWN]) {
  test(`a stall of ${direction} delays and loses nothing`, async (t) => {
    const { gateway, proxy } = await setUp(t);
    const other = await Client.connect(t, gateway, IN_G);
    const client = await Client.connect(t, proxy, { ...IN_G, ...NO_RETRIES });
    await proxy.stall(direction);
    const sends = Array.from({ length: 50 }, (_, number) => client.send("g", `${number}`));
    if (direction === UP) await other.send("g", "from the other");
    else await other.received("g", 50);
    await proxy.resume(direction);
    await Promise.all(sends);
    const expected = Array.from({ length: 50 }, (_, number) => `${number}`);
    if (direction === UP) expected.unshift("from the other");
    assert.deepEqual(await client.received("g", expected.length), expected);
    assert.deepEqual(await other.received("g", expected.length), expected);
    assert.equal((await proxy.report()).accepted, 1);
  });
}

test("a cut while a request is stalled is survived: the same ack id is executed once (22 #7)", async (t) => {
  const { gateway, proxy } = await setUp(t);
  const receiver = await Client.connect(t, gateway, IN_G);
  const client = await Client.connect(t, proxy, NO_RETRIES);
  for (const direction of [UP, DOWN]) {
    await proxy.stall(direction);
    const done = client.sendUntilDone("g", direction, direction === UP ? 100 : 200);
    if (direction === DOWN) await receiver.received("g", 2);
    await proxy.strike("client_dies");
    await proxy.resume(direction);
    const { isDuplicated } = await done;
    assert.equal(isDuplicated, direction === DOWN, "executed before the cut only if it had reached the gateway");
  }
  await client.send("g", "end");
  assert.deepEqual(await receiver.received("g", 3), [UP, DOWN, "end"]);
});

test("recovery works with an access token that has expired (22 #2; 22.1 #8)", async (t) => {
  const { gateway, proxy } = await setUp(t);
  const aud = `${proxy.endpoint}/client/hubs/chat`;
  // Valid for two more seconds, thanks to the skew of 5 minutes.
  const exp = Math.floor(Date.now() / 1000) - 298;
  const token = jwt.sign({ aud, exp, "webpubsub.group": ["g"] }, ACCESS_KEY, { noTimestamp: true });
  const url = `${aud.replace("http", "ws")}?access_token=${token}`;
  const client = await Client.connect(t, proxy, { url });
  await until("the token's end", async () => {
    const late = Client.create(t, proxy, { url, autoReconnect: false });
    const accepted = await late.sdk.start().then(() => true, () => false);
    if (accepted) await sleep(100);
    return !accepted;
  });
  const { accepted } = await proxy.report();
  await proxy.strike("cut_rst");
  await proxy.wait({ accepted: accepted + 1 });
  const sender = await Client.connect(t, gateway);
  await sender.send("g", "still here");
  assert.deepEqual(await client.received("g", 1), ["still here"]);
  assert.equal(client.disconnections, 0);
  assert.equal(client.connections.length, 1);
});

test("a recovery with another connection's token is refused, and the session lives (22 #2; 22.1 #9)", async (t) => {
  const { gateway, proxy } = await setUp(t);
  const victim = await Client.connect(t, gateway, IN_G);
  const victimId = victim.connectionId;
  const thief = await Client.connect(t, proxy);
  const thiefId = thief.connectionId;
  thief.sdk._connectionId = victimId;
  await proxy.strike("cut_rst");
  // Refused with 1008, the client opens a new session.
  const replacement = await thief.connected(2);
  assert.ok(![victimId, thiefId].includes(replacement));
  await thief.send("g", "harmless");
  assert.deepEqual(await victim.received("g", 1), ["harmless"]);
  assert.equal(victim.disconnections, 0);
});

test("after the retention a recovery is refused: the client opens a new session and rejoins (22 #2; 22.1 #10)", async (t) => {
  const { gateway, proxy } = await setUp(t, { toml: "session_retention_seconds = 1\n" });
  const sender = await Client.connect(t, gateway);
  const client = await Client.connect(t, proxy);
  await client.join("kept");
  await client.join("left");
  await client.leave("left");
  await sender.send("kept", "before");
  await client.received("kept", 1);

  await proxy.refuse();
  await proxy.strike("cut_rst");
  await proxy.wait({ refused: 1 });
  await sender.send("kept", "lost with the session");
  // The client tries once a second; by the third refusal the session is long over.
  await proxy.wait({ refused: 4 });
  await proxy.refuse(0);

  const replacement = await client.connected(2);
  assert.notEqual(replacement, client.connections[0].connectionId);
  assert.equal(client.disconnections, 1);
  assert.deepEqual(client.rejoinFailures, []);
  // The SDK joins the groups again before it reports the new session, and its numbering starts again.
  await sender.send("left", "not for the client");
  await sender.send("kept", "after");
  assert.deepEqual(await client.received("kept", 2), ["before", "after"]);
  assert.deepEqual(client.texts("left"), []);
  assert.equal(client.messages.at(-1).sequenceId, 1);
});

test("a client that is stopped with a dead socket under it does not come back", async (t) => {
  const { proxy } = await setUp(t);
  const client = await Client.connect(t, proxy);
  const { accepted } = await proxy.report();
  client.stop();
  await until("stopped", () => client.stopped);
  assert.equal((await proxy.report()).accepted, accepted);
});

test("SIGTERM closes every socket with 1001, and clients come back to the restarted gateway", async (t) => {
  const gateway = await Gateway.start(t);
  const codes = [];
  const clients = [];
  for (let number = 0; number < 20; number++) {
    const client = await Client.connect(t, gateway);
    await client.join("g");
    socketOf(client).addEventListener("close", ({ code }) => codes.push(code));
    clients.push(client);
  }
  await gateway.stop();
  await until("all closes", () => codes.length === clients.length);
  assert.deepEqual([...new Set(codes)], [1001]);
  // Going away does not end the sessions: the clients try to recover. The memory store has lost them, so the
  // restarted gateway refuses with 1008, and each client opens a new session and joins its group again.
  assert.ok(clients.every((client) => client.disconnections === 0));
  await gateway.launch();
  for (const client of clients) {
    assert.notEqual(await client.connected(2), client.connections[0].connectionId);
    assert.equal(client.disconnections, 1);
  }
  await clients[0].send("g", "hello again");
  for (const client of clients) {
    assert.deepEqual(await client.received("g", 1), ["hello again"]);
    assert.deepEqual(client.rejoinFailures, []);
  }
});

test("a killed gateway with the memory store loses its sessions, and clients start anew (22 #2)", async (t) => {
  const gateway = await Gateway.start(t);
  const client = await Client.connect(t, gateway);
  await client.join("g");
  await gateway.kill();
  await gateway.launch();
  await client.connected(2);
  await client.send("g", "hello again");
  assert.deepEqual(await client.received("g", 1), ["hello again"]);
});

test("a gateway that hangs up during the handshake is tried again", async (t) => {
  const { gateway, proxy } = await setUp(t);
  await proxy.plan(2, { direction: UP, after_bytes: 40, action: "cut_rst" });
  await proxy.plan(3, { direction: DOWN, after_bytes: 40, action: "cut_fin" });
  const client = await Client.connect(t, proxy, IN_G);
  await proxy.strike("cut_rst");
  await proxy.wait({ accepted: 4 });
  const sender = await Client.connect(t, gateway);
  await sender.send("g", "at last");
  assert.deepEqual(await client.received("g", 1), ["at last"]);
  assert.equal(client.connections.length, 1);
});

test("health is answered while clients come and go", async (t) => {
  const { gateway } = await setUp(t);
  await Client.connect(t, gateway);
  for (const method of ["HEAD", "GET"]) {
    const answer = await within(method, fetch(`${gateway.endpoint}/api/health`, { method }));
    assert.equal(answer.status, 200);
  }
  assert.match(await clientUrl(gateway.endpoint), /^ws:/);
});
