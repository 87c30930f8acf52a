/**
 * A link on the protobuf client, whose session survives a reload of the page.
 */
import { ProtobufClient, type Started } from "../protobuf-client/index.js";
import type { Link, LinkListener, Published } from "./link.js";

export interface ProtobufLinkListener extends LinkListener {
  /** What is to be kept with the session. */
  keepApplication(): string;
  /** Gets what was kept, before anything else happens. */
  restoreApplication(application: string): void;
}

export class ProtobufLink implements Link {
  readonly kind = "protobuf";
  readonly #client: ProtobufClient;
  readonly #listener: LinkListener;

  /** `name` is the session's within the tab. */
  constructor(name: string, getUrl: () => Promise<string>, listener: ProtobufLinkListener) {
    this.#listener = listener;
    this.#client = new ProtobufClient({
      name,
      getUrl,
      onMessage: ({ group, payload }) => {
        if (payload.kind === "json") listener.onMessage(group, payload.json);
      },
      keepApplication: () => listener.keepApplication(),
      restoreApplication: (application) => listener.restoreApplication(application),
      onSessionLost: () => this.#tellSession(false),
      ...(listener.trace && { trace: listener.trace }),
    });
  }

  get connectionId(): string | undefined {
    return this.#client.connectionId;
  }

  async start(): Promise<void> {
    await this.resume();
  }

  /** {@link start}, telling what was found of the session. */
  async resume(): Promise<Started> {
    const started = await this.#client.start();
    this.#tellSession(true);
    return started;
  }

  async join(group: string): Promise<void> {
    await this.#client.join(group);
  }

  publish(group: string, content: unknown): Promise<Published> {
    return this.#client.send(group, { kind: "json", json: content });
  }

  stop(): void {
    this.#client.stop();
  }

  #tellSession(isFirst: boolean): void {
    this.#listener.onSession(this.#client.connectionId ?? "", isFirst);
  }
}
