/**
 * The protobuf client where the gateway or the browser fails it, with a socket and a storage that do so when told:
 * neither can be had from real ones.
 */
import assert from "node:assert/strict";
import { test } from "node:test";

import { until } from "../../sdk/js/support/waiting.js";
import { bundle } from "../support/bundle.js";

Object.assign(globalThis, { WebSocket: { OPEN: 1 }, addEventListener() {}, removeEventListener() {}, reportError() {} });
const code = await bundle("protobuf-client/index.ts");
const { ProtobufClient } = await import(`data:text/javascript;base64,${Buffer.from(code).toString("base64")}`);

/** A field of a protobuf message: bytes, text, or a small number. */
function field(number, value) {
  if (typeof value === "number") return Buffer.from([number << 3, value]);
  const bytes = Buffer.from(value);
  return Buffer.concat([Buffer.from([(number << 3) | 2, bytes.length]), bytes]);
}

const connected = field(3, field(1, Buffer.concat([field(1, "c"), field(3, "token")])));
const notStored = (ackId) => field(1, Buffer.concat([field(1, ackId), field(3, field(1, "InternalServerError"))]));
const success = (ackId) => field(1, Buffer.concat([field(1, ackId), field(2, 1)]));
const message = (sequenceId) =>
  field(2, Buffer.concat([field(2, "room"), field(3, field(1, "hello")), field(4, sequenceId)]));

class FakeStorage {
  isFull = false;
  #items = new Map();
  get length() {
    return this.#items.size;
  }
  key(index) {
    return [...this.#items.keys()][index] ?? null;
  }
  getItem(key) {
    return this.#items.get(key) ?? null;
  }
  setItem(key, value) {
    if (this.isFull) throw new Error("full");
    this.#items.set(key, value);
  }
  removeItem(key) {
    this.#items.delete(key);
  }
}

/** A started client; `said` holds what it traced. */
async function scene(t, { storage = new FakeStorage(), refusedOpens = 0 } = {}) {
  const said = [];
  const socket = { readyState: WebSocket.OPEN, send() {}, close() {} };
  const hear = (frame) => socket.onmessage({ data: new Uint8Array(frame).buffer });
  const client = new ProtobufClient({
    name: "tester",
    getUrl: async () => "ws://gateway/client/hubs/demo",
    onMessage() {},
    trace: (event) => said.push(event),
    storage,
    locks: undefined,
    openSocket() {
      if (refusedOpens-- > 0) throw new Error("not this one");
      setTimeout(() => {
        socket.onopen();
        hear(connected);
      });
      return socket;
    },
  });
  t.after(() => client.stop());
  await client.start();
  return { client, storage, hear, said, publishes: () => said.filter(({ kind }) => kind === "publish").map(({ ackId }) => ackId) };
}

const text = { kind: "text", text: "hello" };

test("what the gateway could not store is sent again once, in order, and nothing else", async (t) => {
  const { client, hear, publishes } = await scene(t);
  const sends = [1, 2, 3, 4].map(() => client.send("room", text));
  for (const ackId of [4, 2, 1]) hear(notStored(ackId));
  await until("a resend", async () => publishes().length > 4);
  for (const ackId of [1, 2, 4]) hear(notStored(ackId));
  await until("another one", async () => publishes().length > 7);
  assert.deepEqual(publishes(), [1, 2, 3, 4, 1, 2, 4, 1, 2, 4]);
  for (const ackId of [1, 2, 3, 4]) hear(success(ackId));
  await Promise.all(sends);
});

test("a sequence id that could not be kept is not acknowledged before it is", async (t) => {
  const { client, storage, hear, said } = await scene(t);
  const acknowledged = () => said.filter(({ kind }) => kind === "sequenceAck").map(({ sequenceId }) => sequenceId);
  hear(message(1));
  storage.isFull = true;
  hear(message(2));
  await until("an acknowledgement", async () => acknowledged().length > 0);
  assert.deepEqual(acknowledged(), [1]);
  storage.isFull = false;
  hear(message(3));
  await until("the next one", async () => acknowledged().length > 1);
  assert.deepEqual(acknowledged(), [1, 3]);
  assert.equal(client.pendingRequests, 0);
});

test("a full storage stops neither the start nor an ack", async (t) => {
  const full = new FakeStorage();
  full.isFull = true;
  const { client, storage, hear } = await scene(t, { storage: full });
  assert.equal(client.connectionId, "c");
  storage.isFull = false;
  const joined = client.join("room");
  storage.isFull = true;
  hear(success(1));
  assert.deepEqual(await joined, { ackId: 1, isDuplicate: false });
});

test("a socket that can't be made is tried again", async (t) => {
  const { client } = await scene(t, { refusedOpens: 2 });
  assert.equal(client.connectionId, "c");
});
