/**
 * Writes what a test asked for and saw as a history, and lets the independent checker judge it.
 */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { promisify } from "node:util";

import { binary } from "./processes.js";

/** The history of all clients of one test, in the order of observation. */
export class History {
  constructor() {
    this.events = [];
  }

  push(event) {
    this.events.push(event);
  }

  /** Everything that had to arrive at these sessions has arrived. */
  quiesced(clients) {
    this.push({ event: "quiesced", connections: clients.map((client) => client.connectionId) });
  }

  /** Fails unless the checker finds nothing wrong; returns how often it judged what, by name. */
  async judge() {
    const folder = await mkdtemp(path.join(os.tmpdir(), "oncewire-history-"));
    const file = path.join(folder, "history.jsonl");
    await writeFile(file, this.events.map((event) => `${JSON.stringify(event)}\n`).join(""));
    try {
      const { stdout } = await promisify(execFile)(binary("oncewire-check"), ["--json", file]);
      await rm(folder, { recursive: true });
      return JSON.parse(stdout).statistics;
    } catch (error) {
      // The file is kept, as evidence.
      assert.fail(`the checker refused ${file}: ${error.message}\n${error.stdout}`);
    }
  }
}

/** Records one client that keeps one session: what it sees at once, what it asks for through the methods below. */
export class Recorder {
  constructor(history, client, hub) {
    Object.assign(this, { history, client, early: [] });
    client.sdk.on("group-message", ({ message }) => this.#deliver(message));
    client.sdk.on("connected", ({ connectionId }) => {
      history.push({ event: "opened", connection: connectionId, hub, reliable: true });
      this.connection = connectionId;
      for (const message of this.early.splice(0)) this.#deliver(message);
    });
  }

  #deliver(message) {
    if (!this.connection) return void this.early.push(message);
    const { group, sequenceId } = message;
    const { connection, history } = this;
    history.push({ event: "delivered", connection, group, message: message.data, sequence_id: sequenceId });
  }

  async join(group, ackId) {
    return this.#persist({ event: "join", group, ack_id: ackId }, () => this.client.join(group, { ackId }));
  }

  /** Sends until done, each try and each ack in the history. */
  async send(group, text, ackId, lane) {
    const event = { event: "publish", group, message: text, ack_id: ackId, ...(lane && { lane }) };
    return this.#persist(event, () => this.client.send(group, text, { ackId }));
  }

  #persist(event, request) {
    const { connection, history } = this;
    const acked = (outcome) => history.push({ event: "acked", connection, ack_id: event.ack_id, ...outcome });
    return this.client.persist(async () => {
      history.push({ ...event, connection });
      try {
        const result = await request();
        acked(result.isDuplicated ? { success: false, error: "Duplicate" } : { success: true });
        return result;
      } catch (error) {
        if (error.errorDetail) acked({ success: false, error: error.errorDetail.name });
        throw error;
      }
    });
  }
}
