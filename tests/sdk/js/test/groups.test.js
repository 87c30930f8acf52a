/**
 * Groups as an application uses them: joining, sending, echo, leaving, permissions, ack ids. No faults here.
 * The numbers in the names are the points of the protocol checklist that a test covers.
 */
import assert from "node:assert/strict";
import { test } from "node:test";

import {
  InvocationError,
  SendMessageError,
  WebPubSubJsonProtocol,
  WebPubSubJsonReliableProtocol,
} from "@azure/web-pubsub-client";

import { ALL_GROUPS, Client, NO_RETRIES } from "../support/client.js";
import { Gateway } from "../support/gateway.js";
import { until } from "../support/waiting.js";

const PROTOCOLS = { reliable: WebPubSubJsonReliableProtocol(), plain: WebPubSubJsonProtocol() };

function refusedWith(name) {
  return (error) => error instanceof SendMessageError && error.errorDetail?.name === name;
}

for (const [kind, protocol] of Object.entries(PROTOCOLS)) {
  test(`${kind}: join, send, echo, noEcho, leave (22 #5, #8, #13, #16, #18; 22.1 #19)`, async (t) => {
    const gateway = await Gateway.start(t);
    const token = { userId: "ada" };
    const first = await Client.connect(t, gateway, { protocol, token });
    const second = await Client.connect(t, gateway, { protocol, token });
    await first.join("lobby");
    await second.join("lobby");
    assert.notEqual(first.connectionId, second.connectionId);
    assert.equal(first.connections[0].userId, "ada");

    assert.deepEqual(await first.send("lobby", "echoed"), { ackId: 2, isDuplicated: false });
    // Own message before own ack: it is here already.
    assert.deepEqual(first.texts("lobby"), ["echoed"]);
    await first.send("lobby", "not echoed", { noEcho: true });
    await first.send("lobby", "echoed again");
    // noEcho leaves out the sending connection, and not the user's other ones.
    assert.deepEqual(await second.received("lobby", 3), ["echoed", "not echoed", "echoed again"]);
    assert.deepEqual(await first.received("lobby", 2), ["echoed", "echoed again"]);

    const [message] = second.messages;
    assert.equal(message.fromUserId, "ada");
    assert.equal(message.dataType, "text");
    const ids = second.messages.map(({ sequenceId }) => sequenceId);
    assert.deepEqual(ids, kind === "reliable" ? [1, 2, 3] : [undefined, undefined, undefined]);

    await second.leave("lobby");
    await second.leave("lobby");
    await first.send("lobby", "after leaving");
    await second.join("lobby");
    await first.send("lobby", "after joining again");
    assert.equal((await second.received("lobby", 4)).at(-1), "after joining again");
    assert.equal(second.texts("lobby").length, 4);
  });

  test(`${kind}: every data type arrives as it was sent (22 #12, #15; 22.1 #18)`, async (t) => {
    const gateway = await Gateway.start(t);
    const sender = await Client.connect(t, gateway, { protocol });
    const receiver = await Client.connect(t, gateway, { protocol, token: { groups: ["types"] } });
    const json = { text: "snow ☃ \u2028", nested: [1, 2.5, -1e30, true, null], big: 9007199254740991 };
    const bytes = Uint8Array.from({ length: 256 }, (_, index) => index);
    await sender.sdk.sendToGroup("types", "quoted \" and \\ and \0", "text");
    await sender.sdk.sendToGroup("types", "", "text");
    await sender.sdk.sendToGroup("types", json, "json");
    await sender.sdk.sendToGroup("types", "a json string", "json");
    await sender.sdk.sendToGroup("types", bytes.buffer, "binary");
    await sender.sdk.sendToGroup("types", new ArrayBuffer(0), "binary");
    await sender.sdk.sendToGroup("types", bytes.buffer, "protobuf");
    await receiver.received("types", 7);
    const seen = receiver.messages.map(({ dataType, data }) => [
      dataType,
      data instanceof ArrayBuffer ? new Uint8Array(data) : data,
    ]);
    assert.deepEqual(seen, [
      ["text", "quoted \" and \\ and \0"],
      ["text", ""],
      ["json", json],
      ["json", "a json string"],
      ["binary", bytes],
      ["binary", new Uint8Array(0)],
      ["protobuf", bytes],
    ]);
  });
}

test("the groups of a token need no join and no role", async (t) => {
  const gateway = await Gateway.start(t);
  const sender = await Client.connect(t, gateway);
  const member = await Client.connect(t, gateway, { token: { roles: [], groups: ["a", "b"] }, ...NO_RETRIES });
  await sender.send("a", "1");
  await sender.send("b", "2");
  await sender.send("c", "3");
  await sender.send("a", "4");
  assert.deepEqual(await member.received("a", 2), ["1", "4"]);
  assert.deepEqual(member.messages.map(({ group }) => group), ["a", "b", "a"]);
  await assert.rejects(member.join("c"), refusedWith("Forbidden"));
  await assert.rejects(member.send("a", "no"), refusedWith("Forbidden"));
});

test("hubs do not see each other, and fold case", async (t) => {
  const gateway = await Gateway.start(t);
  const here = await Client.connect(t, gateway, { token: { hub: "Chat", groups: ["g"] } });
  const there = await Client.connect(t, gateway, { token: { hub: "other", groups: ["g"] } });
  const alsoHere = await Client.connect(t, gateway, { token: { hub: "CHAT" } });
  await there.send("g", "there");
  await alsoHere.send("g", "here");
  assert.deepEqual(await here.received("g", 1), ["here"]);
  assert.deepEqual(await there.received("g", 1), ["there"]);
});

test("the older URL form with the hub in the query works", async (t) => {
  const gateway = await Gateway.start(t);
  const { clientUrl } = await import("../support/client.js");
  const made = new URL(await clientUrl(gateway.endpoint));
  for (const path of ["/client", "/client/"]) {
    const url = new URL(made);
    url.pathname = path;
    url.searchParams.set("hub", "chat");
    const client = await Client.connect(t, gateway, { url: url.toString() });
    await client.join("g");
  }
});

test("group names are any text, and case counts", async (t) => {
  const gateway = await Gateway.start(t);
  const client = await Client.connect(t, gateway);
  const names = ["g", "G", " spaced name ", "ünïcødé ☃ 𝄞", "quote\"back\\slash/{}", "x".repeat(1024)];
  for (const name of names) await client.join(name);
  for (const [index, name] of names.entries()) await client.send(name, `to ${index}`);
  await until("all of them", () => client.messages.length >= names.length);
  assert.deepEqual(
    client.messages.map(({ group, data }) => [group, data]),
    names.map((name, index) => [name, `to ${index}`]),
  );
});

test("plural roles are patterns, singular ones are literal (22 #17; 22.1 #20, #21)", async (t) => {
  const gateway = await Gateway.start(t);
  const literal = await Client.connect(t, gateway, {
    token: { roles: ["webpubsub.sendToGroup.*", "webpubsub.joinLeaveGroup.a.b"] },
    ...NO_RETRIES,
  });
  await assert.rejects(literal.send("x", "no"), refusedWith("Forbidden"));
  await literal.send("*", "yes");
  await literal.join("a.b");
  await assert.rejects(literal.join("a"), refusedWith("Forbidden"));
  await assert.rejects(literal.leave("a.b.c"), refusedWith("Forbidden"));

  const pattern = await Client.connect(t, gateway, {
    token: { roles: ["webpubsub.sendToGroups.a.*", "webpubsub.joinLeaveGroups.b.**"] },
    ...NO_RETRIES,
  });
  await pattern.send("a.b", "yes");
  await assert.rejects(pattern.send("a.b.c", "no"), refusedWith("Forbidden"));
  await pattern.join("b.c.d");
  await assert.rejects(pattern.join("a.b"), refusedWith("Forbidden"));
  // A refusal costs nothing but the request.
  await pattern.send("a.c", "yes");
  assert.equal(pattern.disconnections, 0);
});

test("an ack id is executed once (22 #6, #7; 22.1 #1)", async (t) => {
  const gateway = await Gateway.start(t);
  const sender = await Client.connect(t, gateway, NO_RETRIES);
  const receiver = await Client.connect(t, gateway, { token: { groups: ["g"] } });
  assert.deepEqual(await sender.send("g", "once", { ackId: 900 }), { ackId: 900, isDuplicated: false });
  assert.deepEqual(await sender.send("g", "once", { ackId: 900 }), { ackId: 900, isDuplicated: true });
  assert.deepEqual(await sender.send("g", "zero", { ackId: 0 }), { ackId: 0, isDuplicated: false });
  assert.deepEqual(await sender.send("g", "zero", { ackId: 0 }), { ackId: 0, isDuplicated: true });
  // Another content under a used ack id is not executed, and not taken for a duplicate.
  await assert.rejects(sender.send("g", "other", { ackId: 900 }), refusedWith("PayloadMismatch"));
  await sender.send("g", "end");
  assert.deepEqual(await receiver.received("g", 3), ["once", "zero", "end"]);
});

test("a join and a leave share the space of ack ids (22 #6; 22.1 #3)", async (t) => {
  const gateway = await Gateway.start(t);
  const client = await Client.connect(t, gateway, NO_RETRIES);
  await client.join("g", { ackId: 5 });
  // The leave is another request under a used id: refused loudly instead of answered Duplicate, and not executed.
  await assert.rejects(client.leave("g", { ackId: 5 }), refusedWith("PayloadMismatch"));
  assert.equal((await client.join("g", { ackId: 5 })).isDuplicated, true);
  await client.send("g", "still a member");
  assert.deepEqual(await client.received("g", 1), ["still a member"]);
});

test("a refused request does not use up its ack id (22 #6)", async (t) => {
  const gateway = await Gateway.start(t);
  const client = await Client.connect(t, gateway, { token: { roles: ["webpubsub.joinLeaveGroup.a"] }, ...NO_RETRIES });
  await assert.rejects(client.join("b", { ackId: 7 }), refusedWith("Forbidden"));
  assert.deepEqual(await client.join("a", { ackId: 7 }), { ackId: 7, isDuplicated: false });
});

test("requests that are not served yet are answered, and cost nothing (22 #11)", async (t) => {
  const gateway = await Gateway.start(t);
  const client = await Client.connect(t, gateway, NO_RETRIES);
  await assert.rejects(client.sdk.sendEvent("checkout", { cart: 7 }, "json"), refusedWith("InternalServerError"));
  await client.sdk.sendEvent("checkout", { cart: 7 }, "json", { fireAndForget: true });
  await assert.rejects(client.sdk.invokeEvent("quote", "MSFT", "text"), (error) => {
    return error instanceof InvocationError && typeof error.errorDetail?.name === "string";
  });
  await client.join("g");
  await client.send("g", "fine");
  assert.deepEqual(await client.received("g", 1), ["fine"]);
  assert.equal(client.disconnections, 0);
});

test("requests sent before connected was read are served in order (22 #18)", async (t) => {
  const gateway = await Gateway.start(t);
  const client = Client.create(t, gateway);
  await client.sdk.start();
  const requests = [client.join("g")];
  for (let number = 0; number < 100; number++) requests.push(client.send("g", `${number}`));
  await Promise.all(requests);
  assert.deepEqual(
    await client.received("g", 100),
    Array.from({ length: 100 }, (_, number) => `${number}`),
  );
});

test("a message of 1 MiB is accepted, one byte more ends the session (22 #10; 22.1 #17)", async (t) => {
  const gateway = await Gateway.start(t);
  const client = await Client.connect(t, gateway, { ...NO_RETRIES, token: { groups: ["g"] } });
  const frameLength = (text, ackId) =>
    JSON.stringify({ type: "sendToGroup", group: "g", ackId, dataType: "text", data: text, noEcho: false }).length;
  const largest = "x".repeat(1024 * 1024 - frameLength("", 100));
  await client.send("g", largest, { ackId: 100 });
  assert.equal((await client.received("g", 1))[0].length, largest.length);
  assert.equal(client.disconnections, 0);

  await assert.rejects(client.send("g", `${largest}x`, { ackId: 101 }), SendMessageError);
  // The session is gone, so the client's recovery is refused and it opens a new one.
  const replacement = await client.connected(2);
  assert.notEqual(replacement, client.connections[0].connectionId);
  assert.equal(client.disconnections, 1);
});

test("an idle client is kept alive by its own pings (22 #1)", async (t) => {
  const gateway = await Gateway.start(t);
  // Without pongs the client would close after the timeout; it looks every 100 ms.
  const client = await Client.connect(t, gateway, { keepAliveIntervalInMs: 20, keepAliveTimeoutInMs: 300 });
  let closes = 0;
  client.sdk._wsClient._socket.addEventListener("close", () => closes++);
  await new Promise((resolve) => setTimeout(resolve, 1_500));
  assert.equal(closes, 0);
  await client.join("g");
  assert.equal(client.connections.length, 1);
});

test("silent clients are pinged by the gateway and stay connected (22 #1)", async (t) => {
  const gateway = await Gateway.start(t, { toml: "websocket_ping_seconds = 1\n" });
  const silent = { keepAliveIntervalInMs: 0, keepAliveTimeoutInMs: 0, token: { groups: ["g"] } };
  const client = await Client.connect(t, gateway, silent);
  const socket = client.sdk._wsClient._socket;
  let pings = 0;
  socket.on("ping", () => pings++);
  await until("three pings", () => pings >= 3);
  const sender = await Client.connect(t, gateway);
  await sender.send("g", "still there");
  assert.deepEqual(await client.received("g", 1), ["still there"]);
  assert.equal(client.sdk._wsClient._socket, socket, "still the first socket");
});

test("stop() ends a client, and its messages with it", async (t) => {
  const gateway = await Gateway.start(t);
  const sender = await Client.connect(t, gateway);
  const client = await Client.connect(t, gateway, { token: { groups: ["g"], roles: ALL_GROUPS } });
  client.stop();
  await until("stopped", () => client.stopped);
  await sender.send("g", "nobody there");
  assert.equal(client.disconnections, 1);
  assert.deepEqual(client.messages, []);
});
