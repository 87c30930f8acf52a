/**
 * A link on the unmodified official client, which resumes over dropped sockets and begins anew when the page is loaded.
 */
import { SendMessageError, WebPubSubClient } from "@azure/web-pubsub-client";

import type { Link, LinkListener, Published } from "./link.js";
import { observe } from "./observed_socket.js";
import { OrderedOutbox, PublishRefusedError } from "./ordered_outbox.js";

/** Refusals that another try would not cure. */
const FINAL_REFUSALS = ["Forbidden", "PayloadMismatch"];

let links = 0;

export class OfficialLink implements Link {
  readonly kind = "official";
  readonly #client: WebPubSubClient;
  readonly #outbox: OrderedOutbox;
  #connectionId: string | undefined;
  #isStopped = false;
  #connected: () => void = () => {};

  constructor(getUrl: () => Promise<string>, listener: LinkListener) {
    const name = `official-${++links}`;
    const trace: LinkListener["trace"] = (event) => {
      listener.trace?.(event);
      if (event.kind === "opened") setTimeout(() => this.#outbox.socketOpened());
    };
    const credential = { getClientAccessUrl: async () => observe(await getUrl(), name, trace) };
    // Retries of the client would take a new ack id each time; the outbox keeps it.
    this.#client = new WebPubSubClient(credential, { messageRetryOptions: { maxRetries: 0 } });
    this.#outbox = new OrderedOutbox((group, content, ackId) => this.#attempt(group, content, ackId));
    this.#client.on("group-message", ({ message }) => listener.onMessage(message.group, message.data));
    this.#client.on("connected", ({ connectionId }) => {
      const isFirst = this.#connectionId === undefined;
      this.#connectionId = connectionId;
      this.#connected();
      listener.onSession(connectionId, isFirst);
    });
  }

  get connectionId(): string | undefined {
    return this.#connectionId;
  }

  async start(): Promise<void> {
    const connected = new Promise<void>((resolve) => (this.#connected = resolve));
    // The client retries by itself once it has been connected, not before.
    while (!this.#isStopped) {
      try {
        await this.#client.start();
        // The client does not stop while it connects.
        if (this.#isStopped) this.#client.stop();
        else await connected;
        return;
      } catch {
        await new Promise((resolve) => setTimeout(resolve, 500));
      }
    }
  }

  async join(group: string): Promise<void> {
    while (!this.#isStopped) {
      try {
        await this.#client.joinGroup(group);
        return;
      } catch (error) {
        if (isFinal(error)) throw error;
        await new Promise((resolve) => setTimeout(resolve, 250));
      }
    }
  }

  publish(group: string, content: unknown): Promise<Published> {
    return this.#outbox.publish(group, content);
  }

  stop(): void {
    this.#isStopped = true;
    this.#client.stop();
  }

  async #attempt(group: string, content: unknown, ackId: number): Promise<{ isDuplicated: boolean }> {
    try {
      return await this.#client.sendToGroup(group, content as object, "json", { ackId });
    } catch (error) {
      throw isFinal(error) ? new PublishRefusedError(String(error)) : error;
    }
  }
}

function isFinal(error: unknown): boolean {
  return error instanceof SendMessageError && FINAL_REFUSALS.includes(error.errorDetail?.name ?? "");
}
