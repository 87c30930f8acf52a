/**
 * Official clients with the habits that tests need: a fresh token from the official server SDK, all events recorded,
 * stopped after the test.
 */
import assert from "node:assert/strict";

import { WebPubSubServiceClient } from "@azure/web-pubsub";
import { SendMessageError, WebPubSubClient } from "@azure/web-pubsub-client";

import { ACCESS_KEY } from "./gateway.js";
import { sleep, until } from "./waiting.js";

/** Roles that allow every group. */
export const ALL_GROUPS = ["webpubsub.joinLeaveGroup", "webpubsub.sendToGroup"];

/** No retries by the SDK: each of them would take a new ack id unless the caller gave one. */
export const NO_RETRIES = { messageRetryOptions: { maxRetries: 0 } };

/** A client URL from the official server SDK, for whoever listens at `endpoint`. */
export async function clientUrl(endpoint, { hub = "chat", key = ACCESS_KEY, ...claims } = {}) {
  const service = new WebPubSubServiceClient(`Endpoint=${endpoint};AccessKey=${key};Version=1.0;`, hub, {
    allowInsecureConnection: true,
  });
  return (await service.getClientAccessToken({ roles: ALL_GROUPS, ...claims })).url;
}

/** A started client. See {@link Client.connect}. */
export class Client {
  /**
   * Connects to `via` (a gateway or a proxy before one) and waits for `connected`.
   * `token` are the claims, `url` replaces the URL that would be made from them; all else goes to the SDK.
   */
  static async connect(t, via, options = {}) {
    const client = Client.create(t, via, options);
    await client.start();
    return client;
  }

  /** The same without starting it. */
  static create(t, via, { token = {}, url, ...options } = {}) {
    const client = new Client();
    const getClientAccessUrl = url ?? (() => clientUrl(via.endpoint, token));
    client.sdk = new WebPubSubClient({ getClientAccessUrl: asFunction(getClientAccessUrl) }, options);
    client.connections = [];
    client.disconnections = 0;
    client.stopped = false;
    client.messages = [];
    client.serverMessages = [];
    client.rejoinFailures = [];
    client.sdk.on("connected", (event) => client.connections.push(event));
    client.sdk.on("disconnected", () => client.disconnections++);
    client.sdk.on("stopped", () => (client.stopped = true));
    client.sdk.on("group-message", ({ message }) => client.messages.push(message));
    client.sdk.on("server-message", ({ message }) => client.serverMessages.push(message));
    client.sdk.on("rejoin-group-failed", (event) => client.rejoinFailures.push(event));
    t.after(() => client.stop());
    return client;
  }

  async start() {
    await this.sdk.start();
    await this.connected(1);
  }

  /** Waits for the `count`-th new session and returns its connection id. */
  async connected(count) {
    await until(`new session ${count}`, () => this.connections.length >= count);
    return this.connections[count - 1].connectionId;
  }

  /** The session's id; a test that expects one session fails here when there were more. */
  get connectionId() {
    assert.equal(this.connections.length, 1, "the session must not have been replaced");
    return this.connections[0].connectionId;
  }

  join(group, options) {
    return this.sdk.joinGroup(group, options);
  }

  leave(group, options) {
    return this.sdk.leaveGroup(group, options);
  }

  send(group, text, options) {
    return this.sdk.sendToGroup(group, text, "text", options);
  }

  /** Sends a user event, by default a text. */
  event(name, data, options, dataType = "text") {
    return this.sdk.sendEvent(name, data, dataType, options);
  }

  /** Waits until the server has sent `count` messages and returns what they hold. */
  async replies(count) {
    await until(`${count} messages of the server`, () => this.serverMessages.length >= count);
    return this.serverMessages.map(({ data }) => (data instanceof ArrayBuffer ? Buffer.from(data) : data));
  }

  /**
   * Repeats a request under the same ack id until it is done: what an application does that wants exactly once.
   * Returns the last result with the number of tries and the names of the errors that acks carried.
   */
  async persist(request) {
    const errors = [];
    for (let tries = 1; ; tries++) {
      try {
        return { ...(await request()), tries, errors };
      } catch (error) {
        assert.ok(error instanceof SendMessageError, error);
        if (error.errorDetail) errors.push(error.errorDetail.name);
        // Repeating these would not help.
        assert.ok(!["Forbidden", "PayloadMismatch"].includes(error.errorDetail?.name), error.errorDetail?.message);
        assert.ok(!this.stopped, "the client gave up");
        await sleep(5);
      }
    }
  }

  /** {@link Client.persist} for a text to a group. */
  sendUntilDone(group, text, ackId, options) {
    return this.persist(() => this.send(group, text, { ...options, ackId }));
  }

  /** What was delivered of one group. */
  texts(group) {
    return this.messages.filter((message) => message.group === group).map((message) => message.data);
  }

  /** Waits until `count` messages of a group were delivered and returns them. */
  async received(group, count) {
    await until(`${count} messages of ${group}`, () => this.texts(group).length >= count);
    return this.texts(group);
  }

  stop() {
    this.sdk.stop();
  }
}

function asFunction(url) {
  return typeof url === "function" ? url : async () => url;
}
