/**
 * A client of the protobuf subprotocols that knows them from the schema alone, on public libraries.
 */
import assert from "node:assert/strict";

import protobuf from "protobufjs";
import WebSocket from "ws";

import { clientUrl } from "./client.js";
import { repositoryFile } from "./processes.js";
import { until, within } from "./waiting.js";

const schema = (await protobuf.load(repositoryFile("protocol/proto/webpubsub.proto"))).lookup("azure.webpubsub");
const Upstream = schema.lookupType("UpstreamMessage");
const Downstream = schema.lookupType("DownstreamMessage");
const Any = schema.lookupType("Any");

/** A serialised `google.protobuf.Any`. */
export function any(typeUrl, value) {
  return Buffer.from(Any.encode({ typeUrl, value }).finish());
}

export class ProtobufClient {
  /** Connects and waits for `connected`. `token` are the claims; it is closed after test `t`. */
  static async connect(t, via, { reliable = false, token = {} } = {}) {
    const client = new ProtobufClient();
    client.subprotocol = `protobuf.${reliable ? "reliable." : ""}webpubsub.azure.v1`;
    client.reliable = reliable;
    client.url = await clientUrl(via.endpoint, token);
    client.messages = [];
    client.acks = new Map();
    client.lastAckId = 0;
    client.largestSequenceId = 0;
    client.repeated = 0;
    t.after(() => client.socket.terminate());
    await client.#open(client.url);
    await until("connected", () => client.connected);
    return client;
  }

  /** Loses the socket without a word. */
  async lose() {
    const closed = new Promise((resolve) => this.socket.once("close", resolve));
    this.socket.terminate();
    await within("the end of the socket", closed);
  }

  /** Takes the session up again on a new socket. */
  async recover() {
    const url = new URL(this.url);
    url.searchParams.set("awps_connection_id", this.connected.connectionId);
    url.searchParams.set("awps_reconnection_token", this.connected.reconnectionToken);
    await this.#open(url);
  }

  /** Joins a group, and waits for the ack as all requests do. */
  join(group) {
    return this.#ask({ joinGroup: { group, ackId: ++this.lastAckId } });
  }

  /** Publishes: `kind` is a field of the payload, `content` its bytes or text. */
  send(group, kind, content, options = {}) {
    const data = { [kind]: Buffer.from(content) };
    return this.#ask({ sendToGroup: { group, data, ackId: ++this.lastAckId, ...options } });
  }

  /** Sends a user event. Fails with the ack's error. */
  event(name, kind, content, options = {}) {
    const data = { [kind]: Buffer.from(content) };
    return this.#ask({ event: { event: name, data, ackId: ++this.lastAckId, ...options } });
  }

  /** Waits until `count` messages have come and returns them: `{ group, kind, content, sequenceId }`. */
  async received(count) {
    await until(`${count} messages at a protobuf client`, () => this.messages.length >= count);
    return this.messages;
  }

  /** Waits for the answer to a ping. */
  async ping() {
    this.pong = false;
    this.#say({ ping: {} });
    await until("a pong", () => this.pong);
  }

  async #open(url) {
    const socket = new WebSocket(url, this.subprotocol);
    this.socket = socket;
    socket.on("message", (data, isBinary) => {
      assert.ok(isBinary, "protobuf comes in binary frames");
      this.#hear(data);
    });
    await within("a protobuf client's handshake", new Promise((resolve, reject) => {
      socket.once("open", resolve).once("error", reject);
    }));
    assert.equal(socket.protocol, this.subprotocol);
  }

  #say(message) {
    assert.equal(Upstream.verify(message), null);
    this.socket.send(Upstream.encode(Upstream.fromObject(message)).finish());
  }

  async #ask(message) {
    const [{ ackId }] = Object.values(message);
    this.#say(message);
    const ack = await until(`ack ${ackId}`, () => this.acks.get(ackId));
    assert.ok(ack.success, `${ack.error?.name}: ${ack.error?.message}`);
  }

  #hear(bytes) {
    const message = Downstream.toObject(Downstream.decode(bytes), { longs: Number, oneofs: true });
    const content = message[message.message];
    switch (message.message) {
      case "system":
        assert.equal(content.message, "connected");
        this.connected = content.connected;
        break;
      case "ack":
        this.acks.set(content.ackId, content);
        break;
      case "data":
        this.#deliver(content);
        break;
      case "pong":
        this.pong = true;
        break;
      default:
        assert.fail(`nobody asked for ${message.message}`);
    }
  }

  #deliver({ from, group, data, sequenceId, metadata }) {
    assert.ok(["group", "server"].includes(from), from);
    assert.equal(sequenceId !== undefined, this.reliable, "only reliable clients get sequence ids");
    if (this.reliable) {
      if (sequenceId <= this.largestSequenceId) return void this.repeated++;
      this.largestSequenceId = sequenceId;
      if (!this.isSilent) this.#say({ sequenceAck: { sequenceId } });
    }
    this.messages.push({ group, kind: data.data, content: Buffer.from(data[data.data]), sequenceId, metadata });
  }
}
