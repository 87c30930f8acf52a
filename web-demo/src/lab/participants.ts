/**
 * The lab's publishers and subscribers: a client each, what it counts, and what happened on its socket.
 */
import {
  type Link,
  type LinkKind,
  type LinkListener,
  OfficialLink,
  ProtobufLink,
  type ProtobufLinkListener,
} from "../links/index.js";
import { SessionLostError, type Started, type TraceEvent } from "../protobuf-client/index.js";
import { negotiate } from "../gateway.js";
import { randomId } from "../random.js";
import { Judge, parseJudge } from "./judge.js";

/** Publishes that a publisher has under way; the rest of a flood waits in its backlog. */
const UNDER_WAY_MAX = 500;

/** Rejected numbers that a publisher remembers. */
const REJECTED_MAX = 10_000;

/** Of the name of a publisher. */
const PUBLISHER_CHARACTERS_MAX = 64;

/** What the lab publishes. */
export interface Numbered {
  publisher: string;
  number: number;
}

/** Reads what came on the group, to which anybody may publish; anything else than the lab's messages is none. */
export function asNumbered(content: unknown): Numbered | undefined {
  const { publisher, number } = (content ?? {}) as Partial<Numbered>;
  if (typeof publisher !== "string" || publisher.length > PUBLISHER_CHARACTERS_MAX) return undefined;
  if (typeof number !== "number" || !Number.isSafeInteger(number) || number < 1) return undefined;
  return { publisher, number };
}

export type SocketState = "connecting" | "open" | "down";

/** Tells the lab what happened at a participant, as it happens. */
export interface ParticipantListener {
  onTrace(participant: Participant, event: TraceEvent): void;
  onDelivery(subscriber: Subscriber, message: Numbered): void;
  /** A publish was not acknowledged, and will not be. */
  onRejected(publisher: Publisher, number: number): void;
}

/** Counters of one participant's sockets; they only grow. */
export interface SocketCounters {
  /** Sockets that took up a session again. */
  resumed: number;
  /** Sessions that replaced another one. */
  replaced: number;
}

export abstract class Participant {
  abstract readonly role: "publisher" | "subscriber";
  readonly sockets: SocketCounters = { resumed: 0, replaced: 0 };
  socket: SocketState = "connecting";
  /** Open sockets that ended. */
  drops = 0;
  /** When the socket went down last, and how long it took until the session was back. On the page's clock. */
  downAt: number | undefined;
  lastOutageMs: number | undefined;
  protected link!: Link;

  constructor(
    /** Short name on the timeline, such as `P1`. */
    readonly label: string,
    readonly name: string,
    readonly kind: LinkKind,
    protected readonly listener: ParticipantListener,
  ) {}

  get connectionId(): string | undefined {
    return this.link.connectionId;
  }

  /** Counts what passes the socket. */
  abstract count(event: TraceEvent): void;

  protected open(
    hooks: Pick<ProtobufLinkListener, "onMessage" | "keepApplication" | "restoreApplication">,
  ): void {
    const getUrl = async () => (await negotiate(this.label.toLowerCase())).url;
    const listener: LinkListener = {
      onMessage: hooks.onMessage,
      onSession: (_, isFirst) => {
        if (!isFirst) this.sockets.replaced++;
        this.#isBack();
      },
      trace: (event) => {
        this.#follow(event);
        this.listener.onTrace(this, event);
      },
    };
    this.link =
      this.kind === "official"
        ? new OfficialLink(getUrl, listener)
        : new ProtobufLink(`lab-${this.label}`, getUrl, { ...hooks, ...listener });
  }

  /** Connects; tells what was found of an earlier session. */
  protected async connect(): Promise<Started | undefined> {
    if (this.link instanceof ProtobufLink) return this.link.resume();
    await this.link.start();
    return undefined;
  }

  #follow(event: TraceEvent): void {
    if (event.kind === "closed" && this.socket === "open") {
      this.socket = "down";
      this.drops++;
      this.downAt = performance.now();
    }
    if (event.kind === "resumed") {
      this.sockets.resumed++;
      this.#isBack();
    }
  }

  #isBack(): void {
    if (this.socket === "down" && this.downAt !== undefined) this.lastOutageMs = performance.now() - this.downAt;
    this.socket = "open";
  }
}

/** The publisher's state that is kept with its session. */
interface PublisherState {
  id: string;
  nextNumber: number;
  uncertain: number;
  refused: number;
}

function parsePublisherState(text: string): PublisherState | undefined {
  try {
    const state = JSON.parse(text) as PublisherState;
    const numbers = [state.nextNumber, state.uncertain, state.refused];
    return typeof state.id === "string" && numbers.every(Number.isSafeInteger) ? state : undefined;
  } catch {
    return undefined;
  }
}

/** What became of the publishes that an earlier page left without an answer. */
export interface Earlier {
  /** Their numbers, of those that were acknowledged in this page, which therefore sent them. */
  acked: number[];
}

export class Publisher extends Participant {
  readonly role = "publisher";
  /** Handed to a socket again, under the same ack id. */
  sentAgain = 0;
  /** Requests that the gateway had executed before, and said so. */
  answeredDuplicate = 0;
  /** Numbers up to this one are acknowledged, since acks come in order. */
  ackedUpTo = 0;
  #state: PublisherState = { id: randomId(3), nextNumber: 1, uncertain: 0, refused: 0 };
  /** Numbers that wait to be handed to the client. */
  #backlog = 0;
  #underWay = 0;
  #group = "";
  #ackWaiters: { number: number; resolve: () => void; reject: (error: unknown) => void }[] = [];
  /** Handed to a socket of this page and not answered, by number. */
  readonly #carried = new Set<number>();
  /** Under way, and not handed to a socket of this page yet. */
  readonly #uncarried = new Set<number>();
  #rejected: number[] = [];
  #earlier: Promise<boolean>[] = [];
  #earlierAcked: number[] = [];

  constructor(label: string, name: string, kind: LinkKind, listener: ParticipantListener) {
    super(label, name, kind, listener);
    this.open({
      onMessage: () => {},
      keepApplication: () => JSON.stringify(this.#state),
      restoreApplication: (application) => {
        this.#state = parsePublisherState(application) ?? this.#state;
      },
    });
  }

  /** Who publishes, in the payload of each message. */
  get id(): string {
    return this.#state.id;
  }

  get nextNumber(): number {
    return this.#state.nextNumber;
  }

  /** Handed to a socket, of this page or of an earlier one, each once. */
  get sent(): number {
    return this.#state.nextNumber - 1 - this.#uncarried.size;
  }

  get acked(): number {
    return this.#state.nextNumber - 1 - this.#underWay - this.#state.uncertain - this.#state.refused;
  }

  /** Publishes whose session ended before they were acknowledged: nobody knows what became of them. */
  get uncertain(): number {
    return this.#state.uncertain;
  }

  /** Published and not acknowledged. */
  get outboxDepth(): number {
    return this.#backlog + this.#underWay;
  }

  /** Numbers that were handed to a socket and not answered. */
  get carried(): number[] {
    return [...this.#carried];
  }

  /** How many numbers after `number` are acknowledged. */
  ackedAfter(number: number): number {
    const rejected = this.#rejected.filter((one) => one > number && one <= this.ackedUpTo).length;
    return Math.max(0, this.ackedUpTo - number - rejected);
  }

  /** Waits until all is settled that an earlier page left. */
  async earlier(): Promise<Earlier> {
    await Promise.all(this.#earlier);
    return { acked: this.#earlierAcked };
  }

  async start(group: string): Promise<Started | undefined> {
    this.#group = group;
    const started = await this.connect();
    this.ackedUpTo = this.#state.nextNumber - 1;
    for (const { request, settled } of started?.pending ?? []) {
      const message = request.kind === "send" && request.payload.kind === "json" && asNumbered(request.payload.json);
      if (!message) continue;
      this.#state.nextNumber = Math.max(this.#state.nextNumber, message.number + 1);
      this.ackedUpTo = Math.min(this.ackedUpTo, message.number - 1);
      this.#underWay++;
      if (!this.#carried.has(message.number)) this.#uncarried.add(message.number);
      const isAcked = this.#settle(message.number, settled);
      this.#earlier.push(isAcked);
      void isAcked.then((acked) => acked && this.#earlierAcked.push(message.number));
    }
    return started;
  }

  /** Publishes `count` more messages, as fast as the window allows. Returns the last one's number. */
  publish(count: number): number {
    this.#backlog += count;
    const last = this.#state.nextNumber + this.#backlog - 1;
    this.#pump();
    return last;
  }

  /** Waits until the gateway acknowledged a number; fails when that was rejected. */
  async ackOf(number: number): Promise<void> {
    if (number <= this.ackedUpTo) return;
    await new Promise<void>((resolve, reject) => this.#ackWaiters.push({ number, resolve, reject }));
  }

  override count(event: TraceEvent): void {
    if (event.kind === "publish") {
      if (event.again) this.sentAgain++;
      const number = asNumbered(event.content)?.number;
      if (number !== undefined) {
        this.#carried.add(number);
        this.#uncarried.delete(number);
      }
    }
    if (event.kind === "ack" && event.outcome === "duplicate") this.answeredDuplicate++;
  }

  #pump(): void {
    while (this.#backlog > 0 && this.#underWay < UNDER_WAY_MAX) {
      this.#backlog--;
      this.#underWay++;
      const number = this.#state.nextNumber++;
      const message: Numbered = { publisher: this.#state.id, number };
      this.#uncarried.add(number);
      void this.#settle(number, this.link.publish(this.#group, message));
    }
  }

  /** Tells whether it was acknowledged. */
  async #settle(number: number, published: Promise<unknown>): Promise<boolean> {
    let isAcked = true;
    try {
      await published;
    } catch (error) {
      isAcked = false;
      this.#reject(number, error);
    }
    this.#underWay--;
    this.#carried.delete(number);
    this.#uncarried.delete(number);
    if (isAcked) this.ackedUpTo = Math.max(this.ackedUpTo, number);
    this.#ackWaiters = this.#ackWaiters.filter((waiter) => {
      if (waiter.number <= this.ackedUpTo) waiter.resolve();
      return waiter.number > this.ackedUpTo;
    });
    this.#pump();
    return isAcked;
  }

  #reject(number: number, error: unknown): void {
    if (error instanceof SessionLostError) this.#state.uncertain++;
    else this.#state.refused++;
    this.#rejected.push(number);
    if (this.#rejected.length > REJECTED_MAX) this.#rejected.shift();
    this.#ackWaiters = this.#ackWaiters.filter((waiter) => {
      if (waiter.number === number) waiter.reject(error);
      return waiter.number !== number;
    });
    this.listener.onRejected(this, number);
  }
}

export class Subscriber extends Participant {
  readonly role = "subscriber";
  judge = new Judge();
  /** The judge goes on from an earlier page. */
  isRestored = false;
  /** Frames whose sequence id the session had passed, which the client dropped. */
  suppressed = 0;
  #waiters: { publisher: string; number: number; resolve: () => void }[] = [];

  constructor(label: string, name: string, kind: LinkKind, listener: ParticipantListener) {
    super(label, name, kind, listener);
    this.open({
      onMessage: (_, content) => this.#onMessage(content),
      keepApplication: () => JSON.stringify(this.judge.state),
      // The judge goes on from where the session's earlier page was.
      restoreApplication: (application) => {
        const judge = parseJudge(application);
        this.isRestored = judge !== undefined;
        this.judge = judge ?? this.judge;
      },
    });
  }

  async start(group: string): Promise<Started | undefined> {
    const started = await this.connect();
    if (!started?.isResumed) await this.link.join(group);
    return started;
  }

  /** Waits until a publisher's message with this number, or a later one, was delivered. */
  async deliveryOf(publisher: string, number: number): Promise<void> {
    if (number <= this.judge.largest(publisher)) return;
    await new Promise<void>((resolve) => this.#waiters.push({ publisher, number, resolve }));
  }

  override count(event: TraceEvent): void {
    if (event.kind === "message" && event.repeated) this.suppressed++;
  }

  #onMessage(content: unknown): void {
    const message = asNumbered(content);
    if (message === undefined) return;
    if (this.judge.see(message.publisher, message.number) === "ignored") return;
    this.listener.onDelivery(this, message);
    this.#waiters = this.#waiters.filter((waiter) => {
      const isThere = waiter.number <= this.judge.largest(waiter.publisher);
      if (isThere) waiter.resolve();
      return !isThere;
    });
  }
}
