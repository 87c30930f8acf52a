/**
 * The application's say in who may begin a session, and as what: `connect`, asked of a real Express with the official
 * middleware. The numbers in the names are the points of the event checklist that a test covers.
 */
import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { createRequire } from "node:module";
import { after, beforeEach, test } from "node:test";

import { WebPubSubJsonProtocol } from "@azure/web-pubsub-client";
import WebSocket from "ws";

import { Application, Gate, accept, refuse, reply } from "../support/application.js";
import { ALL_GROUPS, Client, NO_RETRIES, clientUrl } from "../support/client.js";
import { ACCESS_KEY, Gateway, SECONDARY_ACCESS_KEY } from "../support/gateway.js";
import { JSON_SUBPROTOCOL, JsonClient, RELIABLE_SUBPROTOCOL, refusal } from "../support/json_client.js";
import { RawClient } from "../support/raw_client.js";
import { serviceOf } from "../support/service.js";

const jwt = createRequire(import.meta.resolve("@azure/web-pubsub"))("jsonwebtoken");

const application = await Application.start("chat", "open");
const toml = `
  ${application.toml("chat", "retry_after_seconds = []")}
  ${application.toml("open")}
  [[hubs."dead".event_handlers]]
  url_template = "http://127.0.0.1:1/eventhandler"
  system_events = ["connect"]
  retry_after_seconds = []
  [hubs."open"]
  anonymous = true
`;
const gateway = await Gateway.start({ after }, { toml });
after(() => application.stop());
const service = serviceOf(gateway);

beforeEach(() => application.forget());

/** A client URL with any claims and any more of a query. */
function urlWith(claims, query = {}) {
  const aud = `${gateway.endpoint}/client/hubs/chat`;
  const token = jwt.sign({ aud, exp: Math.floor(Date.now() / 1000) + 60, ...claims }, ACCESS_KEY, { noTimestamp: true });
  const url = new URL(aud.replace("http", "ws"));
  url.search = new URLSearchParams({ access_token: token, ...query });
  return url;
}

/** Connects once, with what the handler grants. */
function connectGranted(t, grant, options) {
  application.answer("chat", "connect", accept(grant));
  return Client.connect(t, gateway, { token: { userId: "ann", groups: ["token"] }, ...NO_RETRIES, ...options });
}

async function mayPublish(client, group) {
  return client.send(group, "x").then(() => true, ({ errorDetail }) => {
    assert.equal(errorDetail.name, "Forbidden");
    return false;
  });
}

/** Which of these groups a client is in. */
async function groupsOf(client, ...groups) {
  const before = client.messages.length + client.serverMessages.length;
  for (const group of groups) await service.group(group).sendToAll(group, { contentType: "text/plain" });
  await service.sendToConnection(client.connectionId, "end", { contentType: "text/plain" });
  await client.replies(1);
  client.serverMessages.length = 0;
  return client.messages.slice(before).map(({ group }) => group);
}

test("the handler learns what the client brings, but not its token (1)", async (t) => {
  const claims = { sub: "ann", role: ["r1", "r2"], tenant: "t", level: 7, admin: true, "webpubsub.group": "g" };
  const url = urlWith(claims, { room: "7", Access_Token: "other" });
  url.searchParams.append("room", "8");
  url.searchParams.delete("Access_Token");
  const headers = { Cookie: "a=1; b=2", "X-Custom": "c", "X-ASRS-Internal-User": "root" };
  const client = await JsonClient.connect(t, url, ["mine", JSON_SUBPROTOCOL], { headers });
  const { connectionId } = await client.connected();
  const [connect] = await application.seen("chat", 1, "connect");

  const { exp, aud, ...told } = connect.claims;
  assert.deepEqual(told, { sub: ["ann"], role: ["r1", "r2"], tenant: ["t"], level: ["7"], admin: ["true"], "webpubsub.group": ["g"] });
  assert.match(exp[0], /^\d+$/);
  assert.deepEqual(aud, [`${gateway.endpoint}/client/hubs/chat`]);
  assert.deepEqual(connect.queries, { room: ["7", "8"] });
  assert.deepEqual(connect.subprotocols, ["mine", JSON_SUBPROTOCOL]);
  assert.deepEqual(connect.clientCertificates, []);
  assert.deepEqual([connect.headers.cookie, connect.headers["x-custom"]], [["a=1; b=2"], ["c"]]);
  assert.deepEqual(Object.keys(connect.headers).filter((name) => /^(authorization|x-asrs-.*)$/i.test(name)), []);
  assert.equal(connect.wire.cookie, undefined, "the client's cookies are in the body alone");
  assert.ok(!JSON.stringify(connect).includes(url.searchParams.get("access_token")));
  assert.equal(connect.context.userId, "ann");
  assert.equal(connect.context.connectionId, connectionId);
  assert.deepEqual(connect.context.states, {});

  const signed = (key) => `sha256=${createHmac("sha256", key).update(connectionId).digest("hex")}`;
  const { "ce-time": time, "x-ms-client-request-id": requestId, ...sent } = connect.wire;
  assert.match(time, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/);
  assert.match(requestId, /^[0-9a-f-]{36}$/);
  const expected = {
    "ce-awpsversion": "1.0",
    "ce-connectionid": connectionId,
    "ce-eventname": "connect",
    "ce-hub": "chat",
    "ce-id": "0",
    "ce-signature": `${signed(ACCESS_KEY)},${signed(SECONDARY_ACCESS_KEY)}`,
    "ce-source": `/hubs/chat/client/${connectionId}`,
    "ce-specversion": "1.0",
    "ce-type": "azure.webpubsub.sys.connect",
    "ce-userid": "ann",
    "webhook-request-origin": "127.0.0.1",
  };
  const ofEvents = Object.entries(sent).filter(([name]) => /^(ce|webhook)-/.test(name));
  assert.deepEqual(Object.fromEntries(ofEvents), expected);
  assert.match(sent["content-type"], /^application\/json/);
});

test("what was accepted as it is begins as its token says (2)", async (t) => {
  const client = await connectGranted(t, undefined);
  assert.equal(client.connections[0].userId, "ann");
  assert.deepEqual(await groupsOf(client, "token", "other"), ["token"]);
  assert.ok(await mayPublish(client, "any"));
  const [connected] = await application.seen("chat", 1, "connected");
  assert.equal(connected.context.connectionId, client.connectionId);
  assert.equal(connected.wire["ce-id"], "1");
  assert.equal(connected.wire["ce-subprotocol"], RELIABLE_SUBPROTOCOL);
  assert.equal("ce-connectionstate" in connected.wire, false);
});

test("null leaves everything as it is (6)", async (t) => {
  const client = await connectGranted(t, { userId: null, roles: null, groups: null, subprotocol: null, more: 1 });
  assert.equal(client.connections[0].userId, "ann");
  assert.deepEqual(await groupsOf(client, "token"), ["token"]);
  assert.ok(await mayPublish(client, "any"));
});

test("user, roles, groups and state are what the handler says (6, 11)", async (t) => {
  application.answer("chat", "connect", accept(
    { userId: "bob", roles: ["webpubsub.sendToGroup.a"], groups: ["x", "y"] },
    { state: { room: "x", n: 1 } },
  ));
  const client = await Client.connect(t, gateway, { token: { userId: "ann", groups: ["token"] }, ...NO_RETRIES });
  assert.equal(client.connections[0].userId, "bob");
  assert.deepEqual(await groupsOf(client, "token", "x", "y"), ["x", "y"]);
  assert.deepEqual([await mayPublish(client, "a"), await mayPublish(client, "b")], [true, false]);
  const [connected] = await application.seen("chat", 1, "connected");
  assert.deepEqual(connected.context.states, { room: "x", n: 1 });
  assert.equal(connected.context.userId, "bob");
});

test("an empty user is none, no roles are none, and no groups are the token's (6)", async (t) => {
  const client = await connectGranted(t, { userId: "", roles: [], groups: [] });
  assert.ok(!client.connections[0].userId);
  assert.equal(await mayPublish(client, "any"), false);
  assert.deepEqual(await groupsOf(client, "token"), ["token"]);
  const [connected] = await application.seen("chat", 1, "connected");
  assert.equal("ce-userid" in connected.wire, false);
});

test("a refusal has the handler's status and none of its words, and nothing follows (2, 7)", async (t) => {
  for (const status of [400, 401, 403, 404, 429, 503]) {
    application.answer("chat", "connect", refuse(status, "the secret reason"));
    const answer = await refusal(urlWith({ sub: "ann" }));
    assert.equal(answer.status, status);
    assert.doesNotMatch(answer.body, /secret/);
  }
  assert.equal(application.of("chat", "connect").length, 6);
  const client = await connectGranted(t, undefined, { protocol: WebPubSubJsonProtocol() });
  await application.seen("chat", 1, "connected");
  client.stop();
  await application.seen("chat", 1, "disconnected");
  assert.equal(application.of("chat").length, 6 + 3, "nothing of those that were refused");
});

test("an answer that is not valid is refused with 500", async () => {
  const invalid = [
    { groups: [" "] },
    { groups: [null] },
    { roles: [null] },
    { roles: "admin" },
    { userId: 7 },
    { userId: "a\r\nb" },
    { subprotocol: "not-offered" },
    [],
    "text",
  ];
  for (const grant of invalid) {
    application.answer("chat", "connect", accept(grant));
    assert.equal((await refusal(urlWith({ sub: "ann" }))).status, 500, JSON.stringify(grant));
  }
});

test("a handler that can't be reached refuses with 500", async () => {
  const url = await clientUrl(gateway.endpoint, { hub: "dead" });
  assert.equal((await refusal(url)).status, 500);
});

test("a bad token and bad parameters come before the handler", async () => {
  assert.equal((await refusal(urlWith({ exp: 1 }))).status, 401);
  assert.equal((await refusal(urlWith({ sub: "ann" }, { webpubsub_mode: "nonsense" }))).status, 400);
  assert.equal((await refusal(urlWith({ sub: "a\r\nce-hub: other" }))).status, 401, "it could not stand in a header (16)");
  assert.equal(application.of("chat").length, 0);
});

test("a user in any script reaches the handler as UTF-8 (16)", async (t) => {
  const client = await JsonClient.connect(t, urlWith({ sub: "Åse 王" }));
  assert.equal((await client.connected()).userId, "Åse 王");
  const [connect] = await application.seen("chat", 1, "connect");
  // Node reads headers as Latin-1.
  assert.equal(Buffer.from(connect.wire["ce-userid"], "latin1").toString(), "Åse 王");
});

test("the handler chooses the subprotocol", async (t) => {
  const url = urlWith({ sub: "ann" });
  const offer = ["mine", JSON_SUBPROTOCOL, RELIABLE_SUBPROTOCOL];
  for (const [subprotocol, expected] of [[undefined, JSON_SUBPROTOCOL], ["", JSON_SUBPROTOCOL], [RELIABLE_SUBPROTOCOL, RELIABLE_SUBPROTOCOL]]) {
    application.answer("chat", "connect", accept({ subprotocol }));
    const client = await JsonClient.connect(t, url, offer);
    assert.equal(client.socket.protocol, expected);
    assert.equal("reconnectionToken" in (await client.connected()), expected === RELIABLE_SUBPROTOCOL);
  }
  await application.seen("chat", 3, "connected");
});

test("a subprotocol of the application's own makes a raw client", async (t) => {
  application.answer("chat", "connect", accept({ subprotocol: "mine" }));
  application.answer("chat", "user", reply("back", "text"));
  const client = await RawClient.connect(t, gateway, undefined, { userId: "ann" }, ["other", "mine"]);
  assert.equal(client.socket.protocol, "mine");
  client.send("there");
  assert.deepEqual(await client.received(1), ["back"]);
  const [connected] = await application.seen("chat", 1, "connected");
  const [message] = await application.seen("chat", 1, "user");
  assert.equal(connected.wire["ce-subprotocol"], "mine");
  assert.equal(message.wire["ce-subprotocol"], "mine");
  assert.deepEqual([message.context.eventName, message.data], ["message", "there"]);
});

test("a client without a token is asked about where the hub lets it in", async (t) => {
  application.answer("open", "connect", accept({ userId: "guest-7", roles: ALL_GROUPS }));
  const url = `${gateway.endpoint.replace("http", "ws")}/client/hubs/open`;
  const client = await Client.connect(t, gateway, { url, protocol: WebPubSubJsonProtocol() });
  assert.equal(client.connections[0].userId, "guest-7");
  const [connect] = await application.seen("open", 1, "connect");
  assert.deepEqual(connect.claims, {});
});

test("a slow handler holds up nobody else", async (t) => {
  const gate = new Gate();
  application.answer("chat", "connect", async ({ context }) => {
    if (context.userId === "slow") await gate.pass();
    return accept();
  });
  const slow = Client.create(t, gateway, { token: { userId: "slow" } });
  const starting = slow.start();
  await application.seen("chat", 1, "connect");
  const others = Array.from({ length: 20 }, (_, number) => Client.connect(t, gateway, { token: { userId: `${number}` } }));
  await Promise.all(others);
  assert.equal(slow.connections.length, 0);
  gate.open();
  await starting;
});

test("a client that was accepted after it had left is told to be over, once", async (t) => {
  const gate = new Gate();
  application.answer("chat", "connect", () => gate.pass().then(() => accept(undefined, { state: { n: 1 } })));
  const socket = new WebSocket(urlWith({ sub: "ann" }));
  const closed = new Promise((resolve) => socket.on("close", resolve));
  socket.on("error", () => {});
  const [{ context }] = await application.seen("chat", 1, "connect");
  socket.terminate();
  await closed;
  gate.open();
  const [disconnected] = await application.seen("chat", 1, "disconnected");
  assert.equal(disconnected.context.connectionId, context.connectionId);
  assert.deepEqual(disconnected.context.states, { n: 1 });
});
