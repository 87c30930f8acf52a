/**
 * User events, handled by a real Express with the official middleware: what goes there and comes back, in what order, and
 * what becomes of an event that fails. The numbers in the names are the points of the event checklist that a test covers.
 */
import assert from "node:assert/strict";
import { after, beforeEach, test } from "node:test";

import { SendMessageError, WebPubSubJsonProtocol } from "@azure/web-pubsub-client";

import { Application, Gate, accept, refuse, reply } from "../support/application.js";
import { Client, NO_RETRIES, clientUrl } from "../support/client.js";
import { Gateway } from "../support/gateway.js";
import { JSON_SUBPROTOCOL, JsonClient, RELIABLE_SUBPROTOCOL } from "../support/json_client.js";
import { ProtobufClient, any } from "../support/protobuf_client.js";
import { RawClient } from "../support/raw_client.js";
import { inParallel, until } from "../support/waiting.js";

/** The id of the event with ack id 0: an event that is sent again has the same one. */
const FIRST_ID_OF_ACKS = 10n ** 15n;

const application = await Application.start("chat", "few", "busy", "closing", "noisy!");
const toml = `
  ${application.toml("chat", "retry_after_seconds = []")}
  ${application.toml("closing", "retry_after_seconds = []")}
  ${application.toml("busy", "requests_max = 2")}
  ${application.toml("noisy")}
  [[hubs."few".event_handlers]]
  url_template = "${application.url}/{hub}/{event}?code=s3"
  user_event_pattern = "first, SECOND"
  [hubs."closing"]
  on_event_failure = "close"
`;
const gateway = await Gateway.start({ after }, { toml });
after(() => application.stop());

beforeEach(() => application.forget());

function connect(t, options = {}) {
  return Client.connect(t, gateway, { ...NO_RETRIES, ...options });
}

async function connectJson(t, offer, hub = "chat") {
  const client = await JsonClient.connect(t, await clientUrl(gateway.endpoint, { hub }), offer);
  await client.connected();
  return client;
}

/** An event frame. */
function event(ackId, data = "x", more = {}) {
  return { type: "event", event: "e", dataType: "text", data, ...(ackId !== undefined && { ackId }), ...more };
}

function failedWith(name, text) {
  return (error) => {
    assert.ok(error instanceof SendMessageError, error);
    assert.equal(error.errorDetail.name, name);
    if (text) assert.match(error.errorDetail.message, text);
    return true;
  };
}

const PROTOCOLS = { reliable: undefined, plain: WebPubSubJsonProtocol() };

for (const [kind, protocol] of Object.entries(PROTOCOLS)) {
  test(`${kind}: every type goes there and comes back, the reply before the ack (2, 8)`, async (t) => {
    const client = await connect(t, { protocol, token: { userId: "ann" } });
    const bytes = Buffer.from([0, 1, 255]);
    const there = [["text", "héllo", "text/plain"], ["json", { n: [1, null] }, "application/json"], ["binary", bytes, "application/octet-stream"]];
    const back = [["text", "réply"], ["json", '{"n":1.50}'], ["binary", bytes], ["binary", Buffer.from("no text")]];
    let replies = 0;
    for (const [dataType, data, contentType] of there) {
      for (const [replyType, answer] of back) {
        application.answer("chat", "user", reply(answer, replyType));
        const sent = Buffer.isBuffer(data) ? Uint8Array.from(data).buffer : data;
        await client.event("chat.say", sent, {}, dataType);
        assert.equal(client.serverMessages.length, ++replies, "the reply is here when the ack is");
        const message = client.serverMessages.at(-1);
        assert.equal(message.dataType, replyType);
        assert.deepEqual((await client.replies(replies)).at(-1), replyType === "json" ? JSON.parse(answer) : answer);

        const told = application.of("chat", "user").at(-1);
        assert.deepEqual(told.data, Buffer.isBuffer(data) ? { base64: data.toString("base64") } : data);
        assert.equal(told.dataType, dataType);
        assert.equal(told.wire["content-type"].split(";")[0], contentType);
        assert.equal(told.wire["ce-type"], "azure.webpubsub.user.chat.say");
        assert.deepEqual([told.context.eventName, told.context.userId], ["chat.say", "ann"]);
      }
    }
    const ids = client.serverMessages.map(({ sequenceId }) => sequenceId);
    assert.equal(ids.every(Number.isSafeInteger), kind === "reliable");
  });

  test(`${kind}: without data there is no reply (2)`, async (t) => {
    const client = await connect(t, { protocol });
    for (const dataType of [undefined, "text", "json", "binary"]) {
      application.answer("chat", "user", reply(undefined, dataType));
      await client.event("quiet", "x");
    }
    assert.deepEqual(client.serverMessages, []);
    await client.event("quiet", "x", { fireAndForget: true });
    assert.equal((await application.seen("chat", 5, "user")).length, 5);
  });

  test(`${kind}: a failed event may be sent again under its ack id, one that succeeded is not handled twice (8)`, async (t) => {
    const client = await connect(t, { protocol });
    const again = () => client.event("e", "x", { ackId: 7 });
    for (const status of [400, 403, 404, 429, 500, 503]) {
      application.answer("chat", "user", refuse(status, "the secret reason"));
      await assert.rejects(again(), (error) => {
        assert.doesNotMatch(error.errorDetail.message, /secret/);
        return failedWith("InternalServerError")(error);
      });
    }
    application.answer("chat", "user", reply("done", "text"));
    assert.equal((await again()).isDuplicated, false);
    assert.equal((await again()).isDuplicated, true);
    const calls = application.of("chat", "user");
    assert.equal(calls.length, 7);
    assert.deepEqual([...new Set(calls.map(({ wire }) => wire["ce-id"]))], [`${FIRST_ID_OF_ACKS + 7n}`]);
    assert.deepEqual(await client.replies(1), ["done"]);
    assert.equal(client.connections.length, 1);
  });
}

test("an ack id that is being handled is waited for (8)", async (t) => {
  const gate = new Gate();
  application.answer("chat", "user", () => gate.pass().then(() => reply("done", "text")));
  const client = await connectJson(t);
  client.send(event(7), event(7), event(7));
  await application.seen("chat", 1, "user");
  await client.ping();
  assert.deepEqual(client.of("ack"), []);
  gate.open();
  assert.equal((await client.ack(7, 3)).error.name, "Duplicate");
  assert.deepEqual(client.of("ack").map(({ success, error }) => [success, error?.name]), [
    [true, undefined],
    [false, "Duplicate"],
    [false, "Duplicate"],
  ]);
  assert.equal(application.of("chat", "user").length, 1);
  assert.equal(client.of("message").length, 1);
});

test("an ack id is waited for whose event then fails: the next one is handled (8)", async (t) => {
  const gate = new Gate();
  application.answer("chat", "user", async () => {
    await gate.pass();
    return application.of("chat", "user").length === 1 ? refuse(500) : reply();
  });
  const client = await connectJson(t);
  client.send(event(7), event(7));
  await application.seen("chat", 1, "user");
  gate.open();
  await client.ack(7, 2);
  assert.deepEqual(client.of("ack").map(({ success, error }) => [success, error?.name]), [[false, "InternalServerError"], [true, undefined]]);
  assert.equal(application.of("chat", "user").length, 2);
});

test("another event under a used ack id is refused and not handled", async (t) => {
  const client = await connect(t);
  await client.event("e", "x", { ackId: 7 });
  await assert.rejects(client.event("e", "y", { ackId: 7 }), failedWith("PayloadMismatch"));
  await assert.rejects(client.event("f", "x", { ackId: 7 }), failedWith("PayloadMismatch"));
  assert.equal(application.of("chat", "user").length, 1);
});

test("a slow handler: requests wait in order, pings and sequence acks do not (9)", async (t) => {
  const gate = new Gate();
  application.answer("chat", "user", ({ data }) => gate.pass().then(() => reply(data, "text")));
  const client = await connectJson(t);
  const other = await connect(t);
  client.send(
    event(1, "1"),
    { type: "joinGroup", group: "g", ackId: 2 },
    event(undefined, "3"),
    { type: "sendToGroup", group: "g", dataType: "text", data: "4", ackId: 4 },
    event(5, "5"),
    { type: "sequenceAck", sequenceId: 1 },
  );
  await application.seen("chat", 1, "user");
  await client.ping();
  application.answer("chat", "user", reply());
  await other.event("e", "another client's is handled");
  assert.equal(application.of("chat", "user").length, 2);
  assert.deepEqual([client.of("ack"), client.of("message")], [[], []]);
  application.answer("chat", "user", ({ data }) => reply(data, "text"));
  gate.open();
  await client.ack(5);
  const seen = client.frames.filter(({ type }) => type === "ack" || type === "message");
  assert.deepEqual(seen.map(({ ackId, data }) => ackId ?? data), ["1", 1, 2, "3", "4", 4, "5", 5]);
  assert.ok(client.of("ack").every(({ success }) => success));
  const handled = application.of("chat", "user").map(({ data }) => data);
  assert.deepEqual(handled, ["1", "another client's is handled", "3", "5"]);
});

test("more requests than may wait: reading stops, and all are handled in order (9)", async (t) => {
  const EVENTS = 1_500;
  const gate = new Gate();
  application.answer("chat", "user", () => gate.pass());
  const client = await connectJson(t);
  const numbers = Array.from({ length: EVENTS }, (_, number) => number + 1);
  client.send(...numbers.map((number) => event(number, `${number}`)));
  await application.seen("chat", 1, "user");
  gate.open();
  await client.received("ack", EVENTS);
  assert.deepEqual(client.of("ack").map(({ ackId, success }) => success && ackId), numbers);
  assert.deepEqual(application.of("chat", "user").map(({ data }) => Number(data)), numbers);
});

test("20,000 deliveries to a client whose handler takes its time: nothing overflows (9)", async (t) => {
  const MESSAGES = 20_000;
  const gate = new Gate();
  application.answer("chat", "user", () => gate.pass().then(() => reply("at last", "text")));
  const client = await connect(t, { token: { groups: ["g"], roles: [] } });
  const publisher = await connect(t);
  const handled = client.event("slow", "x");
  await application.seen("chat", 1, "user");
  await inParallel(Array.from({ length: MESSAGES }, (_, number) => `${number}`), 1_000, (text) => publisher.send("g", text));
  const texts = await client.received("g", MESSAGES);
  assert.ok(texts.every((text, number) => text === `${number}`), "all of them, in order");
  assert.equal(gate.waiting, 1);
  assert.deepEqual(client.serverMessages, []);
  gate.open();
  await handled;
  assert.deepEqual(await client.replies(1), ["at last"]);
  assert.deepEqual([client.connections.length, client.disconnections], [1, 0]);
});

test("a handler with as many events as it may have: further ones fail at once, and say why", async (t) => {
  const gate = new Gate();
  application.answer("busy", "user", () => gate.pass().then(() => reply()));
  const token = { hub: "busy" };
  const clients = [await connect(t, { token }), await connect(t, { token }), await connect(t, { token })];
  await application.seen("busy", 3, "connected");
  const running = clients.slice(0, 2).map((client) => client.event("e", "x", { ackId: 1 }));
  await application.seen("busy", 2, "user");
  // The place of a notification may still be taken, so it is refused before the other two have ended.
  await assert.rejects(clients[2].event("e", "x", { ackId: 1 }), failedWith("InternalServerError", /busy/));
  gate.open();
  await Promise.all(running);
  assert.equal((await clients[2].event("e", "x", { ackId: 1 })).isDuplicated, false);
  assert.equal(application.of("busy", "user").length, 3);
});

test("what no handler takes is told so", async (t) => {
  const few = await connect(t, { token: { hub: "few" } });
  await assert.rejects(few.event("third", "x"), failedWith("InternalServerError", /handler/));
  await few.event("Second", "x");
  const [taken] = await application.seen("few", 1, "user");
  assert.equal(taken.context.eventName, "Second", "the client's own spelling");
  assert.equal(taken.path, "/eventhandler/few/Second");
});

test("ids count a connection's events, and those with an ack id have one that follows from it (12)", async (t) => {
  const client = await connectJson(t, [JSON_SUBPROTOCOL]);
  await application.seen("chat", 1, "connected");
  client.send(event(), event(7), event());
  await application.seen("chat", 3, "user");
  await client.close();
  await application.seen("chat", 1, "disconnected");
  const ids = application.of("chat").map(({ wire }) => wire["ce-id"]);
  const counted = ids.filter((id) => BigInt(id) < FIRST_ID_OF_ACKS);
  assert.deepEqual(counted.slice(0, 4), ["0", "1", "2", "3"]);
  assert.equal(ids[3], `${FIRST_ID_OF_ACKS + 7n}`);
  assert.equal(new Set(ids).size, ids.length, "no two alike");
  assert.ok(BigInt(counted[4]) > 3n);
  const unasked = await connectJson(t, [JSON_SUBPROTOCOL], "few");
  unasked.send({ ...event(), event: "first" });
  const [first] = await application.seen("few", 1, "user");
  assert.equal(first.wire["ce-id"], "2", "0 and 1 are reserved where nobody listens, too");
});

test("a handler's notes: absent keeps, empty clears, a failure keeps (11)", async (t) => {
  const client = await connect(t, { protocol: WebPubSubJsonProtocol() });
  const noted = async (answer) => {
    application.answer("chat", "user", answer);
    await client.event("e", "x").catch(() => {});
    return application.of("chat", "user").at(-1);
  };
  assert.equal((await noted(reply(undefined, undefined, { state: { n: 1 } }))).wire["ce-connectionstate"], undefined);
  assert.deepEqual((await noted(reply())).context.states, { n: 1 });
  assert.deepEqual((await noted(refuse(500, "", { headers: { "ce-connectionState": "bG9zdA==" } }))).context.states, { n: 1 });
  const opaque = "not base64, and not JSON: {\"a\" = 1}";
  assert.deepEqual((await noted(reply("x", "text", { headers: { "ce-connectionState": opaque } }))).context.states, { n: 1 });
  assert.equal((await noted(reply(undefined, undefined, { headers: { "ce-connectionState": "" } }))).wire["ce-connectionstate"], opaque);
  assert.equal((await noted(reply())).wire["ce-connectionstate"] ?? "", "");
  client.stop();
  const [disconnected] = await application.seen("chat", 1, "disconnected");
  assert.deepEqual(disconnected.context.states, {});
});

test("each connection has cookies of its own (13)", async (t) => {
  application.answer("chat", "connect", ({ context }) => accept(undefined, { headers: { "set-cookie": `at=${context.userId}` } }));
  const ann = await connect(t, { token: { userId: "ann" } });
  const bob = await connect(t, { token: { userId: "bob" } });
  application.answer("chat", "user", reply(undefined, undefined, { headers: { "set-cookie": ["more=1", "elsewhere=1; Path=/other"] } }));
  await ann.event("e", "1");
  application.answer("chat", "user", refuse(500, "", { headers: { "set-cookie": "failed=1" } }));
  await assert.rejects(ann.event("e", "2"));
  application.answer("chat", "user", reply());
  await ann.event("e", "3");
  await bob.event("e", "4");
  const cookies = application.of("chat", "user").map(({ data, wire }) => [data, wire.cookie?.split("; ").sort()]);
  assert.deepEqual(cookies, [
    ["1", ["at=ann"]],
    ["2", ["at=ann", "more=1"]],
    ["3", ["at=ann", "more=1"]],
    ["4", ["at=bob"]],
  ]);
});

test("metadata goes there and comes back", async (t) => {
  const client = await connectJson(t);
  application.answer("chat", "user", reply("x", "text", { headers: { "X-WebPubSub-Metadata-Trace": "a, b" } }));
  client.send(event(1, "x", { metadata: { Span: "1, 2" } }));
  await client.ack(1);
  assert.equal(application.of("chat", "user")[0].wire["x-webpubsub-metadata-span"], "1, 2");
  assert.deepEqual(client.of("message")[0].metadata, { trace: "a, b" });
  application.answer("chat", "user", reply(undefined, undefined, { headers: { "X-WebPubSub-Metadata-Trace": "alone" } }));
  client.send(event(2));
  await client.ack(2);
  const [, empty] = client.of("message");
  assert.deepEqual([empty.dataType, empty.data, empty.metadata], ["text", "", { trace: "alone" }]);
});

test("an answer that can't be sent on is a failure, and so is one over 16 MiB (16)", async (t) => {
  const client = await connect(t);
  const bad = [
    reply("{", "json"),
    { bytes: 16 * 1024 * 1024 + 1, success: [undefined, "text"] },
  ];
  for (const answer of bad) {
    application.answer("chat", "user", answer);
    await assert.rejects(client.event("e", "x", { ackId: 1 }), failedWith("InternalServerError"));
  }
  application.answer("chat", "user", reply());
  await client.event("e", "x", { ackId: 1 });
  assert.deepEqual(client.serverMessages, []);
});

test("a client that does not want acks is not told of failures, and stays", async (t) => {
  application.answer("chat", "user", refuse(500));
  const client = await connectJson(t, [RELIABLE_SUBPROTOCOL]);
  client.send(event());
  await application.seen("chat", 1, "user");
  application.answer("chat", "user", reply());
  client.send(event(1));
  await client.ack(1);
  assert.equal(client.of("ack").length, 1);
});

test("a hub may close whose events fail", async (t) => {
  application.answer("closing", "user", refuse(500));
  const client = await connectJson(t, [JSON_SUBPROTOCOL], "closing");
  client.send(event(1));
  assert.equal(await client.closed(), 1011);
  assert.equal(client.of("ack")[0]?.error.name, "InternalServerError");
  await application.seen("closing", 1, "disconnected");
});

test("each frame of a raw client is an event, and the reply a bare frame", async (t) => {
  const client = await RawClient.connect(t, gateway);
  application.answer("chat", "user", ({ data, dataType }) => {
    return dataType === "text" ? reply(`${data} back`, "text") : reply(Buffer.from(data.base64, "base64"), "binary");
  });
  client.send("text");
  client.send(Buffer.from([1, 2]));
  client.send("");
  await client.received(3);
  application.answer("chat", "user", reply('{"n": 1}', "json"));
  client.send("{}");
  assert.deepEqual(await client.received(4), ["text back", Buffer.from([1, 2]), " back", '{"n": 1}']);
  const told = application.of("chat", "user");
  assert.ok(told.every(({ context, wire }) => context.eventName === "message" && !("ce-subprotocol" in wire)));
});

test("a raw client whose event fails is closed with 1011", async (t) => {
  const client = await RawClient.connect(t, gateway);
  application.answer("chat", "user", refuse(403, "the secret reason"));
  client.send("refused");
  client.send("never handled");
  assert.equal(await client.closed(), 1011);
  await application.seen("chat", 1, "disconnected");
  assert.equal(application.of("chat", "user").length, 1);
});

for (const reliable of [false, true]) {
  test(`a ${reliable ? "reliable " : ""}protobuf client's events`, async (t) => {
    const client = await ProtobufClient.connect(t, gateway, { reliable });
    application.answer("chat", "user", ({ data, dataType }) => {
      if (dataType === "json") return reply(JSON.stringify(data), "json");
      return dataType === "text" ? reply(data, "text") : reply(Buffer.from(data.base64, "base64"), "binary");
    });
    await client.event("e", "text", "héllo");
    await client.event("e", "json", '{"n":1}');
    await client.event("e", "binary", [0, 255]);
    const replies = await client.received(3);
    assert.deepEqual(replies.map(({ kind, content }) => [kind, content.toString("latin1")]), [
      ["text", Buffer.from("héllo").toString("latin1")],
      ["json", '{"n":1}'],
      ["binary", "\x00\xff"],
    ]);
    // The official middleware does not know this type.
    await assert.rejects(client.event("e", "any", any("type.googleapis.com/x", [1])), /InternalServerError/);
    await client.event("e", "text", "still here");
    const [first] = application.of("chat", "user");
    assert.equal(first.wire["ce-subprotocol"], client.subprotocol);
  });
}

test("many clients at once", async (t) => {
  const clients = await Promise.all(Array.from({ length: 20 }, () => connect(t, { token: { hub: "noisy" } })));
  await inParallel(clients, 20, async (client) => {
    for (let number = 0; number < 25; number++) await client.event("e", `${number}`, { ackId: 1_000 + number });
  });
  await until("all events", async () => (await application.counts("noisy")).user === 500);
  assert.deepEqual(await application.counts("noisy"), { connect: 20, connected: 20, user: 500 });
});
