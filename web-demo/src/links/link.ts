/**
 * What the chat and the lab ask of a connection, whichever client is behind it.
 */
import type { TraceListener } from "../protobuf-client/index.js";

export type LinkKind = "official" | "protobuf";

/** How a publish ended. */
export interface Published {
  ackId: number;
  /** The gateway had executed it before. */
  isDuplicate: boolean;
}

/** What a link tells. */
export interface LinkListener {
  /** A message was delivered to the application, once. */
  onMessage(group: string, content: unknown): void;
  /** A session began; `isFirst` is false when it replaced another one. */
  onSession(connectionId: string, isFirst: boolean): void;
  trace?: TraceListener;
}

export interface Link {
  readonly kind: LinkKind;
  readonly connectionId: string | undefined;
  /** Connects; resolves when the session is there. */
  start(): Promise<void>;
  join(group: string): Promise<void>;
  /** Publishes JSON; resolves when it was acknowledged, over any number of sockets. */
  publish(group: string, content: unknown): Promise<Published>;
  stop(): void;
}
