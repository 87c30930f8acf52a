/**
 * The reliability lab without its looks: two publishers, two subscribers, the faults, and what is remembered across a
 * reload of the page.
 */
import { gatewayStatus, type GatewayStatus, restartGateway, strike, type SocketFault } from "../gateway.js";
import type { TraceEvent } from "../protobuf-client/index.js";
import { randomId } from "../random.js";
import { Incident, plural } from "./incident.js";
import { asNumbered, type Numbered, type Participant, Publisher, Subscriber } from "./participants.js";
import { Timeline } from "./timeline.js";

export const STALL_MS = 3_000;
export const FLOOD_MESSAGES = 2_000;
/** What each publisher sends before and after a socket is cut, so that the cut falls into something. */
const CUT_BURST_MESSAGES = 8;
const RELOAD_BURST_MESSAGES = 60;
const TICK_MS = 50;
const FENCE_AGAIN_MS = 2_000;
const INCIDENTS_MAX = 50;

/** What a page leaves to the one after it, apart from the protobuf client's sessions. */
interface Legacy {
  rate: number;
  official: { subscriber: string; publisher: string; seen: Record<string, number>; unanswered: number };
  protobuf: { subscriber: string; publisher: string; unanswered: number };
}

/** What a reload did to one kind of client. */
export interface ReloadSide {
  isSameSession: boolean;
  connectionBefore: string;
  connectionAfter: string;
  /** Messages that the subscriber never got. */
  missed: number;
  duplicated: number;
  /** Publishes without an answer when the page ended ... */
  unanswered: number;
  /** ... that were sent again afterwards. The others' fate can't be known. */
  sentAgain: number;
}

export interface ReloadReport {
  official: ReloadSide;
  protobuf: ReloadSide;
}

const LEGACY_KEY = "oncewire/lab-legacy";
/** The tab's group: sessions that survive the page are in it. */
const GROUP_KEY = "oncewire/lab-group";

export class Lab {
  readonly publishers: readonly [Publisher, Publisher];
  readonly subscribers: readonly [Subscriber, Subscriber];
  readonly participants: readonly Participant[];
  readonly timeline = new Timeline();
  readonly incidents: Incident[] = [];
  readonly group: string;
  status: GatewayStatus | undefined;
  reload: ReloadReport | undefined;
  isReady = false;
  /** Messages a second, of each publisher. */
  rate: number;
  readonly #legacy: Legacy | undefined;
  readonly #ackNumbers = new Map<Participant, Map<number, number>>();
  /** Messages that are due. */
  #owed = 0;
  /** Whose turn it is to publish. */
  #turn = 0;
  #lastTick = performance.now();

  constructor(rate: number) {
    this.#legacy = readLegacy();
    this.group = sessionStorage.getItem(GROUP_KEY) ?? `lab-${randomId(3)}`;
    sessionStorage.setItem(GROUP_KEY, this.group);
    this.rate = this.#legacy?.rate ?? rate;
    const listener = {
      onTrace: (participant: Participant, event: TraceEvent) => this.#onTrace(participant, event),
      onDelivery: (subscriber: Subscriber, message: Numbered) => this.#onDelivery(subscriber, message),
    };
    this.publishers = [
      new Publisher("P1", "Publisher 1", "official", listener),
      new Publisher("P2", "Publisher 2", "protobuf", listener),
    ];
    this.subscribers = [
      new Subscriber("S1", "Subscriber 1", "official", listener),
      new Subscriber("S2", "Subscriber 2", "protobuf", listener),
    ];
    this.participants = [...this.publishers, ...this.subscribers];
  }

  async start(): Promise<void> {
    void this.#pollStatus();
    const [first, second] = this.subscribers;
    const subscribed = Promise.all([
      first.start(this.group),
      second.start(this.group),
    ]);
    // Nobody is there yet on a first visit; after a reload everybody comes back at once.
    if (this.#legacy === undefined) await subscribed;
    const published = await Promise.all(this.publishers.map((publisher) => publisher.start(this.group)));
    const [, again] = await subscribed;
    for (const publisher of this.publishers) {
      if (publisher.nextNumber > 1) continue;
      for (const subscriber of this.subscribers) subscriber.judge.expectAfter(publisher.id, 0);
    }
    this.isReady = true;
    this.#lastTick = performance.now();
    setInterval(() => this.#tick(), TICK_MS);
    addEventListener("pagehide", () => this.#leaveLegacy());
    if (this.#legacy !== undefined) {
      const isResumed = published[1]?.isResumed === true && again?.isResumed === true;
      await this.#reportReload(this.#legacy, isResumed, published[1]?.pending.length ?? 0);
    }
  }

  /** Drops, stalls or robs the socket of a participant. */
  async strike(fault: SocketFault, target: Participant): Promise<void> {
    const titles: Record<SocketFault, string> = {
      cut: `Socket of ${target.label} cut in the middle of a burst`,
      stall: `Socket of ${target.label} stalled for ${STALL_MS / 1000} s`,
      "lose-next-ack": `Ack of ${target.label}’s next publish lost, and its socket with it`,
    };
    const incident = this.#open(titles[fault], [target], fault !== "stall");
    this.#mark(target, fault === "cut" ? "cut" : fault === "stall" ? "stall" : "ack lost");
    const droppedBefore = target.drops;
    await this.#settle(incident, async () => {
      if (fault === "cut") this.#publish(CUT_BURST_MESSAGES);
      await strike(fault, target.connectionId ?? "", fault === "stall" ? STALL_MS : undefined);
      if (fault === "cut") this.#publish(CUT_BURST_MESSAGES);
      // Somebody has to ask for the ack that is to be lost.
      if (fault === "lose-next-ack") (target as Publisher).publish(1);
      if (fault === "stall") await this.#stallIsOver();
      else await this.#until(() => target.drops > droppedBefore && target.socket === "open");
    });
  }

  /** Kills the gateway's process and waits for the next one. */
  async killGateway(): Promise<void> {
    const incident = this.#open("Gateway killed with SIGKILL", this.participants, true);
    this.#mark(undefined, "gateway killed");
    const boot = this.status?.boot;
    const before = this.participants.map(({ drops }) => drops);
    await this.#settle(incident, async () => {
      await restartGateway();
      const isBack = (participant: Participant, index: number) =>
        participant.drops > (before[index] ?? 0) && participant.socket === "open";
      await this.#until(() => this.status?.boot !== boot && this.participants.every(isBack));
    });
  }

  /** Publishes many messages at once. */
  async flood(): Promise<void> {
    const incident = this.#open(`Flood of ${FLOOD_MESSAGES.toLocaleString("en")} messages`, this.publishers, false);
    this.#mark(undefined, "flood");
    await this.#settle(incident, async () => {
      this.#publish(FLOOD_MESSAGES / this.publishers.length);
    });
  }

  /** Reloads the page in the middle of a burst. */
  reloadPage(): void {
    this.#publish(RELOAD_BURST_MESSAGES / this.publishers.length);
    location.reload();
  }

  #open(title: string, targets: readonly Participant[], drops: boolean): Incident {
    const incident = new Incident(title, targets, this.publishers, this.subscribers, drops);
    this.incidents.unshift(incident);
    this.incidents.length = Math.min(this.incidents.length, INCIDENTS_MAX);
    return incident;
  }

  async #settle(incident: Incident, act: () => Promise<void>): Promise<void> {
    const timer = setInterval(() => incident.watch(), TICK_MS / 2);
    try {
      await act();
      await this.#fence();
      incident.close();
    } catch (error) {
      incident.fail(error instanceof Error ? error.message : String(error));
    } finally {
      clearInterval(timer);
    }
  }

  /**
   * Publishes one more message each and waits for it everywhere. A session gets its messages in order, so whatever is
   * missing before it by then is lost.
   */
  async #fence(): Promise<void> {
    const fences = this.publishers.map((publisher) => ({ publisher, number: publisher.publish(1) }));
    const passed = fences.map(async ({ publisher, number }) => {
      await publisher.ackOf(number);
      await Promise.all(this.subscribers.map((subscriber) => subscriber.deliveryOf(publisher.id, number)));
      for (const { judge } of this.subscribers) judge.settle(publisher.id, number);
    });
    // A subscriber whose session was replaced may miss it; a later message tells as much.
    const timer = setInterval(() => this.#publish(1), FENCE_AGAIN_MS);
    await Promise.all(passed).finally(() => clearInterval(timer));
  }

  /** Each publisher publishes so many more. */
  #publish(count: number): void {
    for (const publisher of this.publishers) publisher.publish(count);
  }

  #stallIsOver(): Promise<void> {
    return new Promise((resolve) => setTimeout(resolve, STALL_MS));
  }

  async #until(condition: () => boolean): Promise<void> {
    while (!condition()) await new Promise((resolve) => setTimeout(resolve, TICK_MS));
  }

  #tick(): void {
    const now = performance.now();
    const perSecond = this.rate * this.publishers.length;
    // A page in the background sleeps; it does not make up for it.
    this.#owed = Math.min(this.#owed + ((now - this.#lastTick) / 1000) * perSecond, perSecond);
    this.#lastTick = now;
    for (; this.#owed >= 1; this.#owed--) {
      this.publishers[this.#turn % this.publishers.length]?.publish(1);
      this.#turn++;
    }
  }

  #onTrace(participant: Participant, event: TraceEvent): void {
    const lane = this.participants.indexOf(participant);
    const at = performance.now();
    participant.count(event);
    if (event.kind === "closed") this.timeline.down(lane, at);
    if (event.kind === "resumed" || event.kind === "connected") this.timeline.up(lane, at);
    if (event.kind === "sequenceAck") {
      this.timeline.add({ kind: "sequenceAck", at, lane, sequenceId: event.sequenceId });
    }
    // What waits is most right before a session is back.
    if (["opened", "resumed", "ack"].includes(event.kind)) for (const incident of this.incidents) incident.watch();
    const numbers = this.#ackNumbersOf(participant);
    if (event.kind === "publish") {
      const number = asNumbered(event.content)?.number;
      if (number === undefined) return;
      numbers.set(event.ackId, number);
      this.timeline.add({ kind: "publish", at, lane, publisher: lane, number, again: event.again });
    }
    if (event.kind === "ack" && numbers.has(event.ackId)) {
      const number = numbers.get(event.ackId) ?? 0;
      numbers.delete(event.ackId);
      const duplicate = event.outcome === "duplicate";
      this.timeline.add({ kind: "ack", at, lane, publisher: lane, number, duplicate });
    }
    if (event.kind === "message" && event.repeated) {
      const message = asNumbered(event.content);
      const publisher = this.#indexOf(message?.publisher);
      if (message && publisher !== undefined) {
        this.timeline.add({ kind: "suppressed", at, lane, publisher, number: message.number });
      }
    }
  }

  #onDelivery(subscriber: Subscriber, { publisher: id, number }: Numbered): void {
    const publisher = this.#indexOf(id);
    if (publisher === undefined) return;
    const publishedAt = this.timeline.publishedAt(publisher, number);
    const lane = this.participants.indexOf(subscriber);
    this.timeline.add({ kind: "deliver", at: performance.now(), lane, publisher, number, publishedAt });
  }

  #mark(target: Participant | undefined, label: string): void {
    const lane = target && this.participants.indexOf(target);
    this.timeline.add({ kind: "fault", at: performance.now(), lane, label });
  }

  #indexOf(publisherId: string | undefined): number | undefined {
    const index = this.publishers.findIndex(({ id }) => id === publisherId);
    return index < 0 ? undefined : index;
  }

  #ackNumbersOf(participant: Participant): Map<number, number> {
    const numbers = this.#ackNumbers.get(participant) ?? new Map<number, number>();
    this.#ackNumbers.set(participant, numbers);
    return numbers;
  }

  async #pollStatus(): Promise<void> {
    for (;;) {
      this.status = await gatewayStatus().catch(() => this.status);
      await new Promise((resolve) => setTimeout(resolve, 1_000));
    }
  }

  #leaveLegacy(): void {
    const [officialPublisher, protobufPublisher] = this.publishers;
    const [officialSubscriber, protobufSubscriber] = this.subscribers;
    const seen = Object.fromEntries(
      this.publishers.map(({ id }) => [id, officialSubscriber.judge.largest(id)] as const),
    );
    const legacy: Legacy = {
      rate: this.rate,
      official: {
        subscriber: officialSubscriber.connectionId ?? "",
        publisher: officialPublisher.connectionId ?? "",
        seen,
        unanswered: officialPublisher.outboxDepth,
      },
      protobuf: {
        subscriber: protobufSubscriber.connectionId ?? "",
        publisher: protobufPublisher.connectionId ?? "",
        unanswered: protobufPublisher.outboxDepth,
      },
    };
    sessionStorage.setItem(LEGACY_KEY, JSON.stringify(legacy));
  }

  async #reportReload(legacy: Legacy, isResumed: boolean, sentAgain: number): Promise<void> {
    const incident = this.#open("Page reloaded", [], false);
    await this.#settle(incident, async () => {});
    const [official, protobuf] = this.subscribers;
    this.reload = {
      official: {
        isSameSession: official.connectionId === legacy.official.subscriber,
        connectionBefore: legacy.official.subscriber,
        connectionAfter: official.connectionId ?? "",
        missed: this.#missedSince(legacy.official.seen),
        duplicated: official.judge.duplicated,
        unanswered: legacy.official.unanswered,
        sentAgain: 0,
      },
      protobuf: {
        isSameSession: isResumed && protobuf.connectionId === legacy.protobuf.subscriber,
        connectionBefore: legacy.protobuf.subscriber,
        connectionAfter: protobuf.connectionId ?? "",
        missed: protobuf.judge.lost,
        duplicated: protobuf.judge.duplicated,
        unanswered: legacy.protobuf.unanswered,
        sentAgain,
      },
    };
    const missed = this.reload.official.missed;
    incident.text = `Page reloaded · protobuf client: ${isResumed ? "same session" : "new session"}, ${sentAgain} sent again, ${this.reload.protobuf.missed} lost, ${this.reload.protobuf.duplicated} duplicated · official client: new session, ${missed} ${plural(missed, "message")} missed`;
  }

  /** What the official subscriber missed between two sessions: it had seen `seen` of each publisher. */
  #missedSince(seen: Record<string, number>): number {
    const [official, protobuf] = this.subscribers;
    return Object.entries(seen).reduce((missed, [id, largest]) => {
      // Of a publisher that ended with the page, the session that went on knows how far it came.
      const next = official.judge.first(id) ?? protobuf.judge.largest(id) + 1;
      return missed + Math.max(0, next - largest - 1);
    }, 0);
  }
}

function readLegacy(): Legacy | undefined {
  const text = sessionStorage.getItem(LEGACY_KEY);
  sessionStorage.removeItem(LEGACY_KEY);
  if (text === null) return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
