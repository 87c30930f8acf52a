/**
 * A real `oncewire dev` with a self-signed certificate, and what it says of the faults that it was asked for.
 */
import assert from "node:assert/strict";
import { createHash, X509Certificate } from "node:crypto";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import https from "node:https";
import net from "node:net";
import os from "node:os";
import path from "node:path";
import tls from "node:tls";

import { start } from "../../sdk/js/support/processes.js";
import { until, within } from "../../sdk/js/support/waiting.js";

export class DevGateway {
  /** Starts it on free ports of loopback, to be stopped after test `t`, which fails if an error was logged. */
  static async start(t, { store = "disk", durability = "sync" } = {}) {
    const gateway = new DevGateway();
    gateway.folder = await mkdtemp(path.join(os.tmpdir(), "oncewire-browser-"));
    gateway.lines = [];
    gateway.events = [];
    gateway.guests = [];
    t.after(async () => {
      try {
        for (const leave of gateway.guests.reverse()) await leave();
      } finally {
        await gateway.stop();
        await rm(gateway.folder, { recursive: true, force: true });
      }
    });
    gateway.port = await freePort();
    const args = ["dev", "--tls-self-signed", "--tls-listen", `127.0.0.1:${gateway.port}`, "--listen", "127.0.0.1:0"];
    args.push("--store", store, "--log-format", "json");
    if (store === "disk") args.push("--data-dir", path.join(gateway.folder, "data"), "--durability", durability);
    gateway.process = start("oncewire", args, { onLine: (stream, line) => gateway.#hear(stream, line) });
    gateway.process.ended.then(() => (gateway.hasEnded = true), () => (gateway.hasEnded = true));
    await gateway.#readCertificate();
    return gateway;
  }

  /** `leave` is called before the gateway is stopped, so that nobody sees it go. */
  welcome(leave) {
    this.guests.push(leave);
  }

  /** Where the page is. */
  get origin() {
    return `https://127.0.0.1:${this.port}`;
  }

  /** `host:port`, as a proxy wants it. */
  get address() {
    return `127.0.0.1:${this.port}`;
  }

  /** The trace events of faults of this kind. */
  faults(kind) {
    return this.events.map(({ fields }) => fields).filter(({ fault }) => fault === kind);
  }

  /** Waits for the trace of a fault, on the socket of a session if one is named. */
  fault(kind, connectionId) {
    const isIt = (fields) => connectionId === undefined || fields.connection_id === connectionId;
    return until(`the gateway's trace of ${kind}`, () => this.faults(kind).find(isIt));
  }

  /** Has the process killed, and waits until another one serves. */
  async restart() {
    const { boot } = JSON.parse(await this.#ask("GET", "/demo/status"));
    await this.#ask("POST", "/demo/restart", "{}");
    await until("another process", async () => {
      const status = await this.#ask("GET", "/demo/status").catch(() => undefined);
      return status !== undefined && JSON.parse(status).boot !== boot;
    });
  }

  async stop() {
    const { child, ended } = this.process;
    child.kill("SIGTERM");
    await within("the gateway's end after SIGTERM", ended).catch((error) => {
      child.kill("SIGKILL");
      throw error;
    });
    const broken = this.lines.filter((line) => /"level":"ERROR"|panicked at/.test(line));
    assert.deepEqual(broken, [], "the gateway logged errors");
  }

  #hear(stream, line) {
    this.lines.push(line);
    if (stream !== "stderr" || !line.startsWith("{")) return;
    const event = JSON.parse(line);
    if (event.fields?.fault !== undefined) this.events.push(event);
  }

  /** Asks as the page does, and returns the answer's text. */
  #ask(method, where, body) {
    const headers = { "content-type": "application/json", origin: this.origin };
    const options = { method, headers, ca: this.certificate, agent: false };
    return new Promise((resolve, reject) => {
      const request = https.request(`${this.origin}${where}`, options, async (response) => {
        try {
          assert.ok(response.statusCode < 300, `${where} was answered with ${response.statusCode}`);
          resolve((await response.toArray()).join(""));
        } catch (error) {
          reject(error);
        }
      });
      request.on("error", reject).end(body);
    });
  }

  /** Waits until it serves, and keeps the certificate that it shows: its file, and the hash of its key. */
  async #readCertificate() {
    const raw = await until("the gateway's certificate", async () => {
      assert.ok(!this.hasEnded, `the gateway ended before it served\n${this.lines.join("\n")}`);
      return peerCertificate(this.port).catch(() => undefined);
    });
    const certificate = new X509Certificate(raw);
    const key = certificate.publicKey.export({ type: "spki", format: "der" });
    this.keyHash = createHash("sha256").update(key).digest("base64");
    this.certificate = certificate.toString();
    this.certificateFile = path.join(this.folder, "certificate.pem");
    await writeFile(this.certificateFile, this.certificate);
  }
}

function peerCertificate(port) {
  return new Promise((resolve, reject) => {
    const socket = tls.connect({ host: "127.0.0.1", port, rejectUnauthorized: false }, () => {
      resolve(socket.getPeerCertificate().raw);
      socket.destroy();
    });
    socket.on("error", reject);
  });
}

function freePort() {
  return new Promise((resolve, reject) => {
    const server = net.createServer();
    server.on("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}
