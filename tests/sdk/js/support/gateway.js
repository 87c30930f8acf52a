/**
 * A real gateway process, started and stopped by a test.
 */
import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import os from "node:os";
import path from "node:path";

import { start } from "./processes.js";
import { until, within } from "./waiting.js";

export const ACCESS_KEY = "sdk-tests-access-key-0123456789abcdef";
export const SECONDARY_ACCESS_KEY = "sdk-tests-secondary-key-0123456789abcdef";

/** The most output lines that are kept to be shown when a test fails. */
const LINES_MAX = 2_000;

export class Gateway {
  /**
   * Starts a gateway on a free port of loopback, which it keeps over restarts.
   * `toml` is the text of its configuration file, `env` its extra environment; `disk` keeps its log over restarts. With
   * `secured` it does that, too, and serves https alone, with a certificate of its own making.
   * It is stopped after test `t`, which fails if the gateway logged an error or ended badly.
   */
  static async start(t, { toml = "", env = {}, disk = false, secured = false } = {}) {
    const gateway = new Gateway();
    gateway.folder = await mkdtemp(path.join(os.tmpdir(), "oncewire-sdk-"));
    gateway.toml = toml;
    gateway.env = env;
    gateway.disk = disk || secured;
    gateway.secured = secured;
    gateway.port = 0;
    gateway.lines = [];
    gateway.output = "";
    t.after(async () => {
      try {
        await gateway.stop();
      } finally {
        await rm(gateway.folder, { recursive: true, force: true });
      }
    });
    await gateway.launch();
    return gateway;
  }

  async launch() {
    const config = path.join(this.folder, "oncewire.toml");
    await writeFile(config, this.toml);
    const args = ["serve", "--access-key", ACCESS_KEY, "--secondary-key", SECONDARY_ACCESS_KEY, "--config", config];
    args.push("--print-connection-string");
    const listen = `127.0.0.1:${this.port}`;
    args.push(...(this.secured ? ["--tls-self-signed", "--tls-listen", listen] : ["--listen", listen]));
    args.push(...(this.disk ? ["--data-dir", this.dataFolder] : ["--store", "memory"]));
    let ready;
    const connectionString = new Promise((resolve) => (ready = resolve));
    const onLine = (stream, line) => {
      this.lines.push(line);
      if (this.lines.length > LINES_MAX) this.lines.shift();
      const found = /connection string: (Endpoint=\S+)/.exec(line);
      const listening = / listening scheme=\S+ address=127\.0\.0\.1:(\d+)/.exec(line);
      if (listening) this.port = Number(listening[1]);
      if (stream === "stdout" && found) ready(found[1]);
      else this.onOutput?.(line);
    };
    this.process = start("oncewire", args, { env: this.env, onLine });
    const ended = this.process.ended.then(({ code, signal }) => {
      assert.fail(`the gateway ended with ${code ?? signal} before it was ready\n${this.lines.join("\n")}`);
    });
    this.connectionString = await within("the gateway's ready line", Promise.race([connectionString, ended]));
    const [, endpoint] = /^Endpoint=([^;]+);AccessKey=/.exec(this.connectionString) ?? [];
    assert.ok(endpoint, `the connection string of the Azure shape: ${this.connectionString}`);
    const told = new URL(endpoint);
    // A public URL is told in place of the address that is listened on.
    if (told.hostname === "127.0.0.1") this.port = Number(told.port);
    else await until("where the gateway listens", () => this.port);
    this.endpoint = `${this.secured ? "https" : "http"}://127.0.0.1:${this.port}`;
  }

  get dataFolder() {
    return path.join(this.folder, "data");
  }

  /** The environment in which clients, of JavaScript and Python, trust its certificate. */
  get trust() {
    if (!this.secured) return {};
    const certificate = path.join(this.dataFolder, "self-signed-certificate.pem");
    return { NODE_EXTRA_CA_CERTS: certificate, SSL_CERT_FILE: certificate };
  }

  /** `host:port`, as a proxy wants it. */
  get address() {
    return `127.0.0.1:${this.port}`;
  }

  /** Ends the gateway gracefully. */
  async stop() {
    if (!this.process) return;
    const { child, ended } = this.process;
    this.process = undefined;
    child.kill("SIGTERM");
    const end = await within("the gateway's end after SIGTERM", ended).catch((error) => {
      child.kill("SIGKILL");
      throw error;
    });
    assert.deepEqual(end, { code: 0, signal: null }, `the gateway ended badly\n${this.lines.join("\n")}`);
    // ERROR means that something is broken, and so does a panic.
    const broken = this.lines.filter((line) => /\bERROR\b|panicked at/.test(line));
    assert.deepEqual(broken, [], "the gateway logged errors");
  }

  /** Ends the gateway without any warning. */
  async kill() {
    const { child, ended } = this.process;
    this.process = undefined;
    child.kill("SIGKILL");
    await within("the gateway's end after SIGKILL", ended);
  }
}
