/**
 * One visit to a chat room: says, hears, and sends receipts. Knows the messages, not how they look.
 */
import { negotiate } from "../gateway.js";
import { OfficialLink } from "../links/index.js";
import { randomId } from "../random.js";
import { asWire, RECEIPT_IDS_MAX, type Wire } from "./wire.js";

/** Receipts are collected for so long, so that a burst costs one publish. */
const RECEIPT_DELAY_MS = 100;

/** Names that are told of one saying. */
const RECEIVED_BY_MAX = 100;

export interface Saying {
  id: string;
  from: string;
  text: string;
  isMine: boolean;
  /** Handed to a socket. */
  isSent: boolean;
  /** The gateway has it and will deliver it. */
  isAcked: boolean;
  /** Names of those whose page has shown it. */
  receivedBy: string[];
}

export interface RoomListener {
  onChange(saying: Saying): void;
  onSocket(isOpen: boolean): void;
}

export class Room {
  readonly sayings: Saying[] = [];
  readonly #link: OfficialLink;
  readonly #group: string;
  readonly #listener: RoomListener;
  readonly #mine = new Map<string, Saying>();
  #unreceipted: string[] = [];
  #receiptTimer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    readonly name: string,
    readonly user: string,
    listener: RoomListener,
  ) {
    this.#group = `room-${name}`;
    this.#listener = listener;
    this.#link = new OfficialLink(async () => (await negotiate(user)).url, {
      onMessage: (_, content) => this.#hear(asWire(content)),
      onSession: () => listener.onSocket(true),
      trace: (event) => {
        if (event.kind === "closed") listener.onSocket(false);
        if (event.kind === "resumed") listener.onSocket(true);
        if (event.kind === "publish") this.#sent(asWire(event.content));
      },
    });
  }

  async enter(): Promise<void> {
    await this.#link.start();
    await this.#link.join(this.#group);
  }

  leave(): void {
    clearTimeout(this.#receiptTimer);
    this.#link.stop();
  }

  say(text: string): void {
    const id = randomId(16);
    const saying: Saying = { id, from: this.user, text, isMine: true, isSent: false, isAcked: false, receivedBy: [] };
    this.#mine.set(id, saying);
    this.#show(saying);
    const acked = this.#link.publish(this.#group, { say: { id, from: this.user, text } } satisfies Wire);
    acked.then(
      () => {
        saying.isAcked = true;
        this.#listener.onChange(saying);
      },
      (error: unknown) => reportError(error),
    );
  }

  #sent(wire: Wire | undefined): void {
    const saying = wire !== undefined && "say" in wire ? this.#mine.get(wire.say.id) : undefined;
    if (saying === undefined || saying.isSent) return;
    saying.isSent = true;
    this.#listener.onChange(saying);
  }

  #hear(wire: Wire | undefined): void {
    if (wire === undefined) return;
    if ("say" in wire) {
      const { id, from, text } = wire.say;
      if (this.#mine.has(id)) return;
      this.#show({ id, from, text, isMine: false, isSent: true, isAcked: true, receivedBy: [] });
      this.#unreceipted.push(id);
      if (this.#unreceipted.length >= RECEIPT_IDS_MAX) this.#sendReceipt();
      else this.#receiptTimer ??= setTimeout(() => this.#sendReceipt(), RECEIPT_DELAY_MS);
    } else {
      const { by, ids } = wire.receipt;
      for (const id of ids) {
        const saying = this.#mine.get(id);
        if (saying === undefined || saying.receivedBy.includes(by) || saying.receivedBy.length >= RECEIVED_BY_MAX) continue;
        saying.receivedBy.push(by);
        this.#listener.onChange(saying);
      }
    }
  }

  #sendReceipt(): void {
    clearTimeout(this.#receiptTimer);
    this.#receiptTimer = undefined;
    const ids = this.#unreceipted;
    this.#unreceipted = [];
    const receipt: Wire = { receipt: { by: this.user, ids } };
    this.#link.publish(this.#group, receipt).catch(reportError);
  }

  #show(saying: Saying): void {
    this.sayings.push(saying);
    this.#listener.onChange(saying);
  }
}
