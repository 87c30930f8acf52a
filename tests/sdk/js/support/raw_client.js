/**
 * A client without a subprotocol, on the public WebSocket library alone: bare payloads, to one group or as events.
 */
import WebSocket from "ws";

import { clientUrl } from "./client.js";
import { until, within } from "./waiting.js";

export class RawClient {
  /**
   * Connects and publishes to `group`, or sends events without one. `token` are the claims, `offer` are subprotocols
   * that the gateway does not speak; it is closed after test `t`.
   */
  static async connect(t, via, group, token = {}, offer = []) {
    const client = new RawClient();
    client.messages = [];
    const url = new URL(await clientUrl(via.endpoint, token));
    if (group) {
      url.searchParams.set("webpubsub_mode", "sendToGroup");
      url.searchParams.set("group", group);
    }
    client.socket = new WebSocket(url, offer);
    client.socket.on("message", (data, isBinary) => client.messages.push(isBinary ? data : data.toString()));
    client.socket.on("close", (code) => (client.closedWith = code));
    t.after(() => client.socket.terminate());
    await within("a raw client's handshake", new Promise((resolve, reject) => {
      client.socket.once("open", resolve).once("error", reject);
    }));
    return client;
  }

  /** Publishes a string as text, bytes as they are. */
  send(data) {
    this.socket.send(data);
  }

  /** Waits until `count` messages have come and returns them: strings and buffers. */
  async received(count) {
    await until(`${count} messages at a raw client`, () => this.messages.length >= count);
    return this.messages;
  }

  /** Waits for the gateway's close and returns its code. */
  async closed() {
    return until("the gateway's close", () => this.closedWith);
  }
}
