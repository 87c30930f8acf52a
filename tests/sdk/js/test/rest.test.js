/**
 * Every method of the official server SDK, with official clients connected.
 */
import assert from "node:assert/strict";
import { test } from "node:test";

import { odata } from "@azure/web-pubsub";

import { Client } from "../support/client.js";
import { Gateway, SECONDARY_ACCESS_KEY } from "../support/gateway.js";
import { ProxyProcess, DOWN } from "../support/proxy.js";
import { serviceOf } from "../support/service.js";
import { until } from "../support/waiting.js";

/** Names that SDK and gateway have to encode and decode alike. */
const NAMES = ["a b", "a/b", "a+b", "a%2Fb", "é", "!*'()", "?", "#"];

/** A client that also records what the server sends to it. */
async function connect(t, via, options) {
  const client = Client.create(t, via, options);
  client.fromServer = [];
  client.sdk.on("server-message", ({ message }) => client.fromServer.push(message.data));
  await client.start();
  return client;
}

function arrived(client, count) {
  return until(`${count} messages of the server`, () => client.fromServer.length >= count && client.fromServer);
}

/** The error that a request has to fail with. */
async function refused(promise, statusCode, code) {
  const error = await promise.then(() => assert.fail("it was accepted"), (error) => error);
  assert.equal(error.statusCode, statusCode, error.message);
  if (code) assert.equal(error.code, code);
}

test("sends reach all, a group, a user and a connection, in every form", async (t) => {
  const gateway = await Gateway.start(t);
  const service = serviceOf(gateway);
  const ann = await connect(t, gateway, { token: { userId: "ann" } });
  const bob = await connect(t, gateway, { token: { userId: "bob" } });
  const group = service.group("ops");
  await group.addUser("ann");
  await service.sendToAll({ n: 1 });
  await service.sendToAll("text", { contentType: "text/plain" });
  await service.sendToAll("a JSON string");
  await service.sendToAll(new Uint8Array([1, 2]).buffer);
  await service.sendToUser("ann", "user", { contentType: "text/plain", messageTtlSeconds: 300 });
  await service.sendToConnection(bob.connectionId, "connection", { contentType: "text/plain" });
  await service.sendToAll("but ann", { contentType: "text/plain", excludedConnections: [ann.connectionId] });
  await service.sendToAll("only ann", { contentType: "text/plain", filter: odata`userId eq ${"ann"}` });
  await group.sendToAll("group", { contentType: "text/plain" });
  await group.sendToAll("nobody", { contentType: "text/plain", excludedConnections: [ann.connectionId] });
  const everybody = [{ n: 1 }, "text", "a JSON string"];
  const heardBy = async (client, count) => {
    const heard = (await arrived(client, count)).map((data) => (data instanceof ArrayBuffer ? [...new Uint8Array(data)] : data));
    return heard.filter((data) => !Array.isArray(data));
  };
  assert.deepEqual(await heardBy(ann, 6), [...everybody, "user", "only ann"]);
  assert.deepEqual(await heardBy(bob, 6), [...everybody, "connection", "but ann"]);
  assert.deepEqual(await ann.received("ops", 1), ["group"]);
  // Nobody is there.
  await service.sendToUser("nobody", "x");
  await service.sendToConnection("nobody", "x");
  await service.group("nobody").sendToAll("x");
});

test("existence, membership and lists", async (t) => {
  const gateway = await Gateway.start(t);
  const service = serviceOf(gateway);
  const client = await connect(t, gateway, { token: { userId: "ann" } });
  const id = client.connectionId;
  assert.equal(await service.connectionExists(id), true);
  assert.equal(await service.connectionExists("nobody"), false);
  assert.equal(await service.userExists("ann"), true);
  assert.equal(await service.userExists("nobody"), false);
  assert.equal(await service.groupExists("g"), false);
  for (const name of NAMES) {
    const group = service.group(name);
    await group.addConnection(id);
    await group.addConnection(id);
    assert.equal(await service.groupExists(name), true, name);
    await group.removeConnection(id);
    await group.removeConnection(id);
    assert.equal(await service.groupExists(name), false, name);
    await group.addUser("ann");
    assert.equal(await service.groupExists(name), true, name);
    await group.removeUser("ann");
    assert.equal(await service.groupExists(name), false, name);
  }
  await service.group("g").addConnection(id);
  await service.removeUserFromAllGroups("ann");
  await service.group("h").addConnection(id);
  await service.removeConnectionFromAllGroups(id);
  await service.addConnectionsToGroups(["x", "y"], "userId eq 'ann'");
  await service.removeConnectionsFromGroups(["y"], "true");
  assert.deepEqual(await Promise.all(["g", "h", "x", "y"].map((name) => service.groupExists(name))), [false, false, true, false]);
  await refused(service.group("g").addConnection("nobody"), 404, "Error.Connection.NotExisted");
  await refused(service.group("g").addUser("nobody"), 404);
  await service.group("g").removeConnection("nobody");
  await service.group("g").removeUser("nobody");
  await service.removeUserFromAllGroups("nobody");
  await service.removeConnectionFromAllGroups("nobody");

  const more = await Promise.all([1, 2, 3, 4].map(() => connect(t, gateway, { token: { groups: ["x"] } })));
  const ids = [id, ...more.map((other) => other.connectionId)].sort();
  const listed = [];
  for await (const member of await service.group("x").listConnections({ maxPageSize: 2 })) listed.push(member);
  assert.deepEqual(listed.map((member) => member.connectionId), ids);
  assert.equal(listed.find((member) => member.connectionId === id).userId, "ann");
});

test("permissions are granted, revoked and checked", async (t) => {
  const gateway = await Gateway.start(t);
  const service = serviceOf(gateway);
  const client = await connect(t, gateway, { token: { roles: ["webpubsub.sendToGroups.team.*"] }, messageRetryOptions: { maxRetries: 0 } });
  const id = client.connectionId;
  const has = (targetName) => service.hasPermission(id, "sendToGroup", { targetName });
  assert.deepEqual([await has("team.a"), await has("a/b")], [true, false]);
  await service.revokePermission(id, "sendToGroup", { targetName: "team.a" });
  await service.grantPermission(id, "sendToGroup", { targetName: "a/b" });
  assert.deepEqual([await has("team.a"), await has("a/b")], [false, true]);
  await assert.rejects(client.send("team.a", "x"), (error) => error.errorDetail?.name === "Forbidden");
  await client.send("a/b", "x");
  await service.revokePermission("nobody", "sendToGroup", { targetName: "g" });
  assert.equal(await service.hasPermission("nobody", "sendToGroup", { targetName: "g" }), false);
  await refused(service.grantPermission("nobody", "sendToGroup", { targetName: "g" }), 404, "Info.Connection.NotExisted");
  await refused(service.grantPermission(id, "sendToGroup"), 400, "Error.BadRequest");
});

test("closes are told with their reason", async (t) => {
  const gateway = await Gateway.start(t);
  const service = serviceOf(gateway);
  const open = async (token) => {
    const client = Client.create(t, gateway, { token, autoReconnect: false });
    client.sdk.on("disconnected", ({ message }) => (client.told = message));
    await client.start();
    return client;
  };
  const told = (client) => until("the reason", () => client.stopped && client.told?.message);
  const [one, user, group, last] = [await open({ userId: "a" }), await open({ userId: "b" }), await open({ groups: ["g"] }), await open({})];
  await service.closeConnection(one.connectionId, { reason: "one" });
  assert.equal(await told(one), "Application server closed the connection. Reason: one");
  await service.closeUserConnections("b", { reason: "b b" });
  assert.equal(await told(user), "Application server closed the connection. Reason: b b");
  await service.group("g").closeAllConnections();
  assert.equal(await told(group), "Application server closed the connection.");
  await service.closeAllConnections({ excluded: [last.connectionId] });
  assert.equal(await service.connectionExists(last.connectionId), true);
  await service.closeAllConnections({ reason: "night" });
  assert.equal(await told(last), "Application server closed the connection. Reason: night");
  await service.closeConnection("nobody");
});

test("bad requests and bad keys are told as errors", async (t) => {
  const gateway = await Gateway.start(t);
  const service = serviceOf(gateway);
  await refused(service.sendToAll("x", { filter: "userId" }), 400, "Error.BadRequest");
  await refused(service.sendToAll("x", { messageTtlSeconds: 301 }), 400, "Error.BadRequest");
  await refused(serviceOf(gateway, { hub: "9chat" }).sendToAll("x"), 400, "Error.BadRequest");
  await refused(service.group(" ").sendToAll("x"), 400, "Error.BadRequest");
  await refused(serviceOf(gateway, { key: "another-access-key-0123456789abcdefgh" }).sendToAll("x"), 401);
  await refused(serviceOf(gateway, { key: "another-access-key-0123456789abcdefgh" }).userExists("u"), 401);
  await serviceOf(gateway, { key: SECONDARY_ACCESS_KEY, hub: "Chat" }).sendToAll("x");
});

test("a send whose answer is lost is retried by the SDK and arrives once", async (t) => {
  const gateway = await Gateway.start(t);
  const proxy = await ProxyProcess.start(t).open(gateway);
  const service = serviceOf(proxy);
  const client = await connect(t, gateway);
  // Of the first two tries the answer is lost.
  for (const connection of [1, 2]) await proxy.plan(connection, { direction: DOWN, after_bytes: 1, action: "cut_rst" });
  let duplicate;
  await service.sendToAll("once", { contentType: "text/plain", onResponse: ({ headers }) => (duplicate = headers.get("x-oncewire-duplicate")) });
  assert.equal(duplicate, "true");
  await service.sendToAll("then", { contentType: "text/plain" });
  assert.deepEqual(await arrived(client, 2), ["once", "then"]);
});

test("also when the gateway is killed before the retry", async (t) => {
  const gateway = await Gateway.start(t, { disk: true });
  const proxy = await ProxyProcess.start(t).open(gateway);
  const service = serviceOf(proxy);
  const client = await connect(t, gateway);
  await proxy.stall(DOWN);
  let duplicate;
  const sending = service.sendToAll("once", { contentType: "text/plain", onResponse: ({ headers }) => (duplicate = headers.get("x-oncewire-duplicate")) });
  await arrived(client, 1);
  await gateway.kill();
  await gateway.launch();
  await proxy.strike("cut_rst");
  await proxy.resume(DOWN);
  await sending;
  assert.equal(duplicate, "true");
  await service.sendToAll("then", { contentType: "text/plain" });
  assert.deepEqual(await arrived(client, 2), ["once", "then"]);
  // Sessions that no checkpoint had were not counted at a start.
  assert.match(gateway.lines.findLast((line) => line.includes("hub started")), /\bsessions=1\b/);
});

test("one request id for several calls, as applications that trace set it, passes over none of them", async (t) => {
  const gateway = await Gateway.start(t);
  const service = serviceOf(gateway);
  const client = await connect(t, gateway);
  const id = client.connectionId;
  const group = service.group("g");
  const traced = { requestOptions: { customHeaders: { "x-ms-client-request-id": "trace-1" } } };
  for (const isMember of [true, false, true]) {
    await (isMember ? group.addConnection(id, traced) : group.removeConnection(id, traced));
    assert.equal(await service.groupExists("g"), isMember);
  }
  const rule = { targetName: "h" };
  for (const isAllowed of [false, true, false]) {
    await (isAllowed ? service.grantPermission : service.revokePermission).call(service, id, "sendToGroup", { ...rule, ...traced });
    assert.equal(await service.hasPermission(id, "sendToGroup", rule), isAllowed);
  }
  for (const text of ["a", "b", "a"]) await service.sendToAll(text, { contentType: "text/plain", ...traced });
  await service.sendToAll("last", { contentType: "text/plain" });
  assert.deepEqual(await arrived(client, 3), ["a", "b", "last"]);
});

test("repeatable requests have one answer, set on the SDK's calls as headers", async (t) => {
  const gateway = await Gateway.start(t, { disk: true });
  const client = await connect(t, gateway, { token: { userId: "ann" } });
  const customHeaders = (id) => ({ "repeatability-request-id": id, "repeatability-first-sent": sent });
  const sent = new Date().toUTCString();
  const results = [];
  const onResponse = ({ headers }) => results.push(headers.get("repeatability-result"));
  const ask = (id) => ({ requestOptions: { customHeaders: customHeaders(id) }, onResponse });
  const calls = async (service) => {
    await service.sendToAll("once", { contentType: "text/plain", ...ask("1") });
    await service.group("g").addUser("ann", ask("2"));
    await refused(service.group("g").addUser("bob", ask("3")), 404);
  };
  const service = serviceOf(gateway);
  await calls(service);
  await service.group("g").removeUser("ann");
  await gateway.kill();
  await gateway.launch();
  await connect(t, gateway, { token: { userId: "bob" } });
  await calls(serviceOf(gateway));
  assert.equal(await service.groupExists("g"), false);
  await service.sendToAll("last", { contentType: "text/plain" });
  assert.deepEqual(await arrived(client, 2), ["once", "last"]);
  assert.deepEqual(results, Array(6).fill("accepted"));
});
