/**
 * What the application hears of a session's life: one beginning and one end, whatever becomes of its sockets and of the
 * gateway. The numbers in the names are the points of the event checklist that a test covers.
 */
import assert from "node:assert/strict";
import { after, beforeEach, test } from "node:test";

import { Application, Gate, accept, reply } from "../support/application.js";
import { Client, NO_RETRIES, clientUrl } from "../support/client.js";
import { Gateway } from "../support/gateway.js";
import { JSON_SUBPROTOCOL, JsonClient, RELIABLE_SUBPROTOCOL } from "../support/json_client.js";
import { repositoryFile, startCommand } from "../support/processes.js";
import { RawClient } from "../support/raw_client.js";
import { serviceOf } from "../support/service.js";
import { until, within } from "../support/waiting.js";

const application = await Application.start("chat", "brief", "storm!");
const toml = `
  ${application.toml("chat")}
  ${application.toml("brief")}
  ${application.toml("storm")}
  [hubs."brief"]
  session_retention_seconds = 1
`;
const gateway = await Gateway.start({ after }, { toml, disk: true });
after(() => application.stop());

beforeEach(() => {
  application.setDown(false);
  application.forget();
});

async function connectJson(t, offer = [RELIABLE_SUBPROTOCOL], hub = "chat") {
  const client = await JsonClient.connect(t, await clientUrl(gateway.endpoint, { hub }), offer);
  const { connectionId } = await client.connected();
  client.connectionId = connectionId;
  await application.seen(hub, 1, "connected");
  return client;
}

/** The kinds of all events of a connection, in the order of their arrival. */
function heardOf(connectionId) {
  return application.events.filter(({ context }) => context.connectionId === connectionId).map(({ kind }) => kind);
}

function send(client, ackId, data = "x") {
  client.send({ type: "event", event: "e", dataType: "text", data, ackId });
  return client.ack(ackId);
}

test("a drop that is recovered tells the application nothing, and its notes stay (10, 11)", async (t) => {
  application.answer("chat", "connect", accept(undefined, { state: { n: 1 } }));
  const client = await connectJson(t);
  for (let round = 1; round <= 3; round++) {
    await client.lose();
    await client.recover();
    assert.ok((await send(client, round)).success);
  }
  assert.ok(application.of("chat", "user").every(({ context }) => context.states.n === 1));
  await client.close();
  await application.seen("chat", 1, "disconnected");
  assert.deepEqual(heardOf(client.connectionId), ["connect", "connected", "user", "user", "user", "disconnected"]);
});

test("an event that is being handled when the socket is lost goes on, and its reply is there after the recovery", async (t) => {
  const gate = new Gate();
  application.answer("chat", "user", () => gate.pass().then(() => reply("done", "text")));
  const client = await connectJson(t);
  client.send({ type: "event", event: "e", dataType: "text", data: "x", ackId: 1 });
  await application.seen("chat", 1, "user");
  await client.lose();
  await client.recover();
  await client.ping();
  gate.open();
  assert.ok((await client.ack(1)).success);
  assert.deepEqual(client.of("message").map(({ data }) => data), ["done"]);
  assert.equal(application.of("chat", "user").length, 1);
  assert.deepEqual(application.cancelled, []);
});

test("an event of a raw client that has gone is handled to its end, and its session does not wait for that", async (t) => {
  const gate = new Gate();
  t.after(() => gate.open());
  application.answer("chat", "user", () => gate.pass());
  const raw = await RawClient.connect(t, gateway);
  raw.send("x");
  await application.seen("chat", 1, "user");
  raw.socket.terminate();
  await application.seen("chat", 1, "disconnected");
  assert.deepEqual(application.cancelled, []);
});

test("a session that nobody comes back to has one end (10)", async (t) => {
  const client = await connectJson(t, undefined, "brief");
  await client.lose();
  const [disconnected] = await application.seen("brief", 1, "disconnected");
  assert.equal(disconnected.context.connectionId, client.connectionId);
  await client.recover();
  assert.equal(await client.closed(), 1008);
  assert.deepEqual(heardOf(client.connectionId), ["connect", "connected", "disconnected"]);
});

test("a socket of an unreliable or raw client takes the session with it (10)", async (t) => {
  const plain = await connectJson(t, [JSON_SUBPROTOCOL]);
  await plain.lose();
  await application.seen("chat", 1, "disconnected");
  const raw = await RawClient.connect(t, gateway);
  await application.seen("chat", 2, "connected");
  raw.socket.terminate();
  await application.seen("chat", 2, "disconnected");
  assert.equal(application.of("chat").length, 6);
});

test("a close with 1000 is an end, with another code it is a drop (10)", async (t) => {
  const client = await connectJson(t);
  await client.close(4000);
  await client.recover();
  await client.ping();
  await client.close(1000);
  await application.seen("chat", 1, "disconnected");
  assert.deepEqual(heardOf(client.connectionId), ["connect", "connected", "disconnected"]);
});

test("the application's own close is an end, with its reason, whether anybody is attached or not (10)", async (t) => {
  const service = serviceOf(gateway);
  for (const isDetached of [false, true]) {
    const client = await connectJson(t);
    if (isDetached) await client.lose();
    await service.closeConnection(client.connectionId, { reason: "time to go" });
    const ended = () => application.of("chat", "disconnected").filter(({ context }) => context.connectionId === client.connectionId);
    await until("the end", () => ended().length > 0);
    assert.match(ended()[0].reason, /time to go/);
    await client.closed();
    await client.recover();
    assert.equal(await client.closed(), 1008);
    assert.deepEqual(heardOf(client.connectionId), ["connect", "connected", "disconnected"]);
  }
});

test("a shutdown that the sessions survive is no end; one that they don't survive is", async (t) => {
  const client = await connectJson(t);
  const plain = await connectJson(t, [JSON_SUBPROTOCOL]);
  await application.seen("chat", 2, "connected");
  await gateway.stop();
  await client.closed();
  await gateway.launch();
  await client.recover();
  assert.ok((await send(client, 1)).success);
  await until("the end of the other", () => heardOf(plain.connectionId).includes("disconnected"));
  await client.close();
  await until("the end", () => heardOf(client.connectionId).includes("disconnected"));
  assert.deepEqual(heardOf(client.connectionId), ["connect", "connected", "user", "disconnected"]);
  const ids = application.of("chat", "disconnected").filter(({ context }) => context.connectionId === plain.connectionId).map(({ wire }) => wire["ce-id"]);
  assert.equal(new Set(ids).size, 1);
});

test("a gateway that is killed during a call: the event is handled again, under the same id", async (t) => {
  const gate = new Gate();
  application.answer("chat", "connect", accept(undefined, { state: { n: 1 } }));
  application.answer("chat", "user", async () => {
    if (application.of("chat", "user").length === 1) await gate.pass();
    return reply("done", "text");
  });
  const client = await Client.connect(t, gateway, NO_RETRIES);
  const done = client.persist(() => client.event("e", "x", { ackId: 7 }));
  await application.seen("chat", 1, "user");
  await gateway.kill();
  await gateway.launch();
  assert.equal((await done).isDuplicated, false);
  gate.open();
  const calls = application.of("chat", "user");
  assert.equal(calls.length, 2);
  assert.equal(calls[0].wire["ce-id"], calls[1].wire["ce-id"]);
  assert.deepEqual(calls.map(({ context }) => context.states), [{ n: 1 }, { n: 1 }]);
  assert.deepEqual(await client.replies(1), ["done"]);
  assert.equal(client.connections.length, 1);
});

test("a gateway that is killed once the handler has answered: one reply, and every call under one id", async (t) => {
  const ROUNDS = 4;
  const client = await Client.connect(t, gateway, NO_RETRIES);
  const handled = new Set();
  application.answer("chat", "user", ({ data, context }) => {
    const isFirst = !handled.has(data);
    handled.add(data);
    // The answer goes out before anything else happens here.
    if (isFirst) setImmediate(() => killed.push(gateway.kill().then(() => gateway.launch())));
    return reply(data, "text", { state: { last: data, before: context.states.last ?? null } });
  });
  const killed = [];
  for (let round = 1; round <= ROUNDS; round++) {
    await client.persist(() => client.event("e", `${round}`, { ackId: round }));
    await Promise.all(killed);
  }
  application.answer("chat", "user", reply("end", "text"));
  await client.persist(() => client.event("e", "end", { ackId: 100 }));
  assert.deepEqual(await client.replies(ROUNDS + 1), ["1", "2", "3", "4", "end"]);
  for (let round = 1; round <= ROUNDS; round++) {
    const ids = application.of("chat", "user").filter(({ data }) => data === `${round}`).map(({ wire }) => wire["ce-id"]);
    assert.ok(ids.length >= 1);
    assert.equal(new Set(ids).size, 1);
  }
  // What the handler noted with the reply that counted is what it is told next.
  assert.equal(application.of("chat", "user").at(-1).context.states.last, `${ROUNDS}`);
  assert.equal(client.connections.length, 1);
  assert.deepEqual(heardOf(client.connectionId).filter((kind) => kind !== "user"), ["connect", "connected"]);
});

test("an end that could not be told yet is told after a crash, under one id", async (t) => {
  const client = await connectJson(t);
  application.setDown(true);
  await client.close();
  await until("an attempt", () => application.turnedAway.length > 0);
  await gateway.kill();
  await gateway.launch();
  application.setDown(false);
  const [disconnected] = await application.seen("chat", 1, "disconnected");
  assert.equal(disconnected.context.connectionId, client.connectionId);
  const attempts = application.turnedAway.filter((wire) => wire["ce-connectionid"] === client.connectionId);
  assert.deepEqual([...new Set(attempts.map((wire) => wire["ce-id"]))], [disconnected.wire["ce-id"]]);
  // It is not told once more after a start that follows on an end in good order.
  await gateway.stop();
  await gateway.launch();
  const next = await Client.connect(t, gateway);
  await next.event("e", "x");
  assert.deepEqual(heardOf(client.connectionId), ["connect", "connected", "disconnected"]);
});

test("5,000 sessions come back, and the application is not asked once", async (t) => {
  const SESSIONS = 5_000;
  const url = await clientUrl(gateway.endpoint, { hub: "storm" });
  const lines = [];
  const storm = startCommand(process.execPath, [repositoryFile("tests/sdk/js/support/storm_process.js"), url, `${SESSIONS}`], {
    onLine: (stream, line) => lines.push(stream === "stdout" ? JSON.parse(line) : { error: line }),
  });
  t.after(() => storm.child.kill());
  const turn = (count) => within(`answer ${count} of the storm`, until("it", () => lines.length >= count && lines[count - 1], 300_000), 300_000);
  const command = (text) => {
    storm.child.stdin.write(`${text}\n`);
    return turn(lines.length + 1);
  };
  assert.deepEqual(await turn(1), { open: SESSIONS });
  await until("all beginnings", async () => (await application.counts("storm")).connected === SESSIONS);
  const before = await application.counts("storm");
  assert.deepEqual(before, { connect: SESSIONS, connected: SESSIONS });
  assert.deepEqual(await command("lose"), { done: "lose", alive: 0 });
  assert.deepEqual(await command("recover"), { done: "recover", alive: SESSIONS });
  assert.deepEqual(await application.counts("storm"), before);
  await command("close");
  await until("all ends", async () => (await application.counts("storm")).disconnected === SESSIONS);
  assert.deepEqual(await application.counts("storm"), { ...before, disconnected: SESSIONS });
});
