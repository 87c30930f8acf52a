/**
 * Clients of all kinds in one group: the official ones of two languages, raw ones, and one of our own that knows the
 * protobuf subprotocols from their schema.
 */
import assert from "node:assert/strict";
import { test } from "node:test";

import { WebPubSubJsonProtocol, WebPubSubJsonReliableProtocol } from "@azure/web-pubsub-client";

import { Client } from "../support/client.js";
import { Gateway } from "../support/gateway.js";
import { ProtobufClient, any } from "../support/protobuf_client.js";
import { RemoteClient } from "../support/remote_client.js";
import { RawClient } from "../support/raw_client.js";

const GROUP = "everybody";

/** What a publisher of this name says in each kind: a string, a JSON value, bytes. */
const SAYINGS = {
  text: (name) => `☃ of ${name}`,
  json: (name) => ({ of: name, list: [1, null, "☃"] }),
  binary: (name) => Buffer.from(`\0\xff of ${name}`, "latin1"),
  protobuf: (name) => any("example.com/Greeting", Buffer.from(name)),
};
const KINDS = Object.keys(SAYINGS);

/** A message in the notation in which they are compared. JSON has one spelling here; its letters are not the point. */
function noted(kind, content) {
  if (kind === "json") return `json ${JSON.stringify(content)}`;
  return `${kind} ${typeof content === "string" ? content : Buffer.from(content).toString("base64")}`;
}

/** What receivers with an envelope have to see of a publisher, in its order. */
function said({ name, kinds }) {
  return kinds.map((kind) => noted(kind, SAYINGS[kind](name)));
}

/** The same for raw receivers, which can't tell JSON from text, nor an Any from bytes. */
function saidRaw({ name, kinds }) {
  return kinds.map((kind) => {
    const saying = SAYINGS[kind](name);
    if (kind === "json") return `text ${JSON.stringify(saying)}`;
    return noted(kind === "protobuf" ? "binary" : kind, saying);
  });
}

function official(name, client) {
  const content = (kind, saying) => (Buffer.isBuffer(saying) ? new Uint8Array(saying).buffer : saying);
  return {
    name,
    kinds: KINDS,
    join: () => client.join(GROUP),
    send: (kind) => client.sdk.sendToGroup(GROUP, content(kind, SAYINGS[kind](name)), kind),
    end: () => client.send(GROUP, "end"),
    received: async (count) => {
      await client.received(GROUP, count);
      return client.messages.map(({ dataType, data }) => noted(dataType, data));
    },
  };
}

function pythonic(name, client) {
  return {
    name,
    kinds: KINDS,
    join: () => client.join(GROUP),
    send: (kind) => {
      const saying = SAYINGS[kind](name);
      return client.send(GROUP, kind, Buffer.isBuffer(saying) ? saying.toString("base64") : saying);
    },
    received: async (count) => (await client.received(count)).map(({ dataType, data }) => noted(dataType, data)),
  };
}

function inProtobuf(name, client) {
  const fields = { text: "text", json: "json", binary: "binary", protobuf: "any" };
  const kindOf = (field) => KINDS.find((kind) => fields[kind] === field);
  const content = (kind, bytes) => {
    if (kind === "json") return JSON.parse(bytes.toString());
    return kind === "text" ? bytes.toString() : bytes;
  };
  return {
    name,
    kinds: KINDS,
    join: () => client.join(GROUP),
    send: (kind) => {
      const saying = SAYINGS[kind](name);
      return client.send(GROUP, fields[kind], kind === "json" ? JSON.stringify(saying) : saying);
    },
    received: async (count) =>
      (await client.received(count)).map(({ kind, content: bytes }) => {
        return noted(kindOf(kind), content(kindOf(kind), bytes));
      }),
  };
}

function raw(name, client) {
  const spelled = (text) => (text.startsWith("{") ? JSON.stringify(JSON.parse(text)) : text);
  return {
    name,
    kinds: ["text", "binary"],
    isRaw: true,
    join: async () => {},
    send: async (kind) => client.send(SAYINGS[kind](name)),
    received: async (count) =>
      (await client.received(count)).map((data) => {
        return typeof data === "string" ? noted("text", spelled(data)) : noted("binary", data);
      }),
  };
}

test("clients of all kinds see one another's messages in one group", async (t) => {
  const gateway = await Gateway.start(t);
  const member = { groups: [GROUP] };
  const participants = [
    official("js reliable", await Client.connect(t, gateway, { protocol: WebPubSubJsonReliableProtocol() })),
    official("js", await Client.connect(t, gateway, { protocol: WebPubSubJsonProtocol() })),
    pythonic("python async", await RemoteClient.python(t, gateway, "async")),
    pythonic("python sync", await RemoteClient.python(t, gateway, "sync")),
    inProtobuf("protobuf reliable", await ProtobufClient.connect(t, gateway, { reliable: true })),
    inProtobuf("protobuf", await ProtobufClient.connect(t, gateway)),
    raw("raw one", await RawClient.connect(t, gateway, GROUP, member)),
    raw("raw two", await RawClient.connect(t, gateway, GROUP, member)),
  ];
  await Promise.all(participants.map(({ join }) => join()));
  await Promise.all(
    participants.map(async ({ kinds, send }) => {
      for (const kind of kinds) await send(kind);
    }),
  );
  const total = participants.reduce((sum, { kinds }) => sum + kinds.length, 0);
  for (const { received } of participants) await received(total);
  // Had anything come twice, it would stand before this.
  await participants[0].end();
  for (const receiver of participants) {
    const heard = await receiver.received(total + 1);
    assert.equal(heard.length, total + 1, receiver.name);
    assert.equal(heard.at(-1), "text end");
    for (const publisher of participants) {
      const expected = receiver.isRaw ? saidRaw(publisher) : said(publisher);
      const own = heard.filter((message) => expected.includes(message));
      assert.deepEqual(own, expected, `${receiver.name} hears ${publisher.name}, in its order`);
    }
  }
});

test("a reliable protobuf client gets what it missed, once and under the same ids", async (t) => {
  const gateway = await Gateway.start(t);
  const publisher = await Client.connect(t, gateway);
  const subscriber = await ProtobufClient.connect(t, gateway, { reliable: true });
  await subscriber.join(GROUP);
  await publisher.send(GROUP, "1");
  await subscriber.received(1);
  subscriber.isSilent = true;
  await publisher.send(GROUP, "2");
  await subscriber.received(2);
  await subscriber.lose();
  await publisher.send(GROUP, "3");
  await subscriber.recover();
  await publisher.send(GROUP, "4");
  const messages = await subscriber.received(4);
  assert.deepEqual(messages.map(({ content, sequenceId }) => [content.toString(), sequenceId]), [
    ["1", 1],
    ["2", 2],
    ["3", 3],
    ["4", 4],
  ]);
  assert.equal(subscriber.repeated, 1, "what was not acknowledged came again");
  await subscriber.ping();
  await subscriber.send(GROUP, "text", "still the same session");
  assert.equal((await subscriber.received(5))[4].sequenceId, 5);
});

test("a raw client that may not publish is closed with 1008 (22.1 #24)", async (t) => {
  const gateway = await Gateway.start(t);
  const publisher = await Client.connect(t, gateway);
  const client = await RawClient.connect(t, gateway, GROUP, { roles: [], groups: [GROUP] });
  await publisher.send(GROUP, "hello");
  assert.deepEqual(await client.received(1), ["hello"]);
  client.send("forbidden");
  assert.equal(await client.closed(), 1008);
});
