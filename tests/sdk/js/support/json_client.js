/**
 * A client of the JSON subprotocols on the public WebSocket library alone, for what the official one does not show: single
 * frames, the answer to a handshake, a session that is taken up again by hand.
 */
import assert from "node:assert/strict";

import WebSocket from "ws";

import { until, within } from "./waiting.js";

export const JSON_SUBPROTOCOL = "json.webpubsub.azure.v1";
export const RELIABLE_SUBPROTOCOL = "json.reliable.webpubsub.azure.v1";

/** How a handshake ends that is refused: `{ status, body }`. */
export async function refusal(url, offer = [JSON_SUBPROTOCOL], options = {}) {
  const socket = new WebSocket(url, offer, options);
  const answer = new Promise((resolve, reject) => {
    socket.on("unexpected-response", (_, response) => {
      let body = "";
      response.on("data", (data) => (body += data)).on("end", () => resolve({ status: response.statusCode, body }));
    });
    socket.on("open", () => reject(new Error("the handshake was accepted")));
    socket.on("error", reject);
  });
  try {
    return await within("the answer to a handshake", answer);
  } finally {
    socket.on("error", () => {}).terminate();
  }
}

export class JsonClient {
  /** Connects to a client URL; it is closed after test `t`. `options` go to the WebSocket library. */
  static async connect(t, url, offer = [RELIABLE_SUBPROTOCOL], options = {}) {
    const client = new JsonClient();
    Object.assign(client, { url, offer, frames: [], pongs: 0 });
    t.after(() => client.socket.terminate());
    await client.#open(url, options);
    return client;
  }

  /** What `connected` says, when it has come. */
  async connected() {
    const isConnected = (frame) => frame.type === "system" && frame.event === "connected";
    return until("connected", () => this.frames.find(isConnected));
  }

  /** Sends frames in one go. */
  send(...frames) {
    for (const frame of frames) this.socket.send(JSON.stringify(frame));
  }

  /** The frames of a type. */
  of(type) {
    return this.frames.filter((frame) => frame.type === type);
  }

  /** Waits for so many frames of a type. */
  received(type, count) {
    return until(`${count} frames ${type}`, () => this.of(type).length >= count && this.of(type));
  }

  /** Waits for the ack of an id and returns the last one. */
  ack(ackId, count = 1) {
    const acks = () => this.of("ack").filter((frame) => frame.ackId === ackId);
    return until(`ack ${ackId}`, () => acks().length >= count && acks().at(-1));
  }

  /** Waits for the answers to both kinds of pings. */
  async ping() {
    const [pongs, frames] = [this.pongs, this.of("pong").length];
    this.socket.ping();
    this.send({ type: "ping" });
    await until("pongs", () => this.pongs > pongs && this.of("pong").length > frames);
  }

  /** Loses the socket without a word. */
  async lose() {
    this.socket.terminate();
    await this.closed();
  }

  /** Takes the session up again on a new socket, once the gateway can tell whether there is one. */
  async recover() {
    const { connectionId, reconnectionToken } = await this.connected();
    const url = new URL(this.url);
    url.searchParams.set("awps_connection_id", connectionId);
    url.searchParams.set("awps_reconnection_token", reconnectionToken);
    await until("the gateway to be ready", async () => {
      try {
        await this.#open(url, {});
        return true;
      } catch (error) {
        assert.match(error.message, /503/);
        return false;
      }
    });
  }

  /** Closes the socket and waits for its end. */
  async close(code = 1000) {
    this.socket.close(code);
    return this.closed();
  }

  /** Waits for the socket's end and returns its code. */
  closed() {
    return until("the end of a socket", () => this.closedWith);
  }

  async #open(url, options) {
    const socket = new WebSocket(url, this.offer, options);
    this.socket = socket;
    this.closedWith = undefined;
    socket.on("pong", () => this.pongs++);
    socket.on("message", (data) => this.frames.push(JSON.parse(data)));
    socket.on("close", (code) => (this.closedWith = code));
    const opened = new Promise((resolve, reject) => socket.once("open", resolve).once("error", reject));
    await within("the handshake of a JSON client", opened);
    socket.on("error", () => {});
  }
}
