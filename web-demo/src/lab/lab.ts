/**
 * The reliability lab without its looks: two publishers, two subscribers, the faults, and what is remembered across a
 * reload of the page.
 */
import { gatewayStatus, type GatewayStatus, restartGateway, strike, type SocketFault } from "../gateway.js";
import { SessionLostError, type TraceEvent } from "../protobuf-client/index.js";
import { randomId } from "../random.js";
import { Incident, plural } from "./incident.js";
import type { Judge } from "./judge.js";
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
  official: LegacySide;
  protobuf: LegacySide;
}

interface LegacySide {
  /** The subscriber's session. */
  subscriber: string;
  /** The largest number that the subscriber saw, by publisher. */
  seen: [publisher: string, largest: number][];
  lost: number;
  duplicated: number;
  /** Numbers of the publisher that a socket had carried and nobody had answered. */
  carried: number[];
}

/** What a reload did to one kind of client. */
export interface ReloadSide {
  isSameSession: boolean;
  connectionBefore: string;
  connectionAfter: string;
  /** Messages that the subscriber never got. */
  missed: number;
  duplicated: number;
  /** Publishes without an answer when the page ended that were sent again afterwards, and answered. */
  sentAgain: number;
  /** Publishes that no socket had carried before, and that were sent and answered afterwards. */
  sentFirst: number;
  /** Publishes whose fate can't be known. */
  uncertain: number;
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
      onRejected: (publisher: Publisher, number: number) => {
        for (const { judge } of this.subscribers) judge.excuse(publisher.id, number);
      },
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
      await this.#reportReload(this.#legacy, published[1]?.isResumed === true, again?.isResumed === true);
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
    const passed = this.publishers.map(async (publisher) => {
      const number = await this.#publishAcked(publisher);
      await Promise.all(this.subscribers.map((subscriber) => subscriber.deliveryOf(publisher.id, number)));
      for (const { judge } of this.subscribers) judge.settle(publisher.id, number);
    });
    // A subscriber whose session was replaced may miss it; a later message tells as much.
    const timer = setInterval(() => this.#publish(1), FENCE_AGAIN_MS);
    await Promise.all(passed).finally(() => clearInterval(timer));
  }

  /** Publishes one more message until one is acknowledged; returns its number. Fails when it is refused. */
  async #publishAcked(publisher: Publisher): Promise<number> {
    for (;;) {
      const number = publisher.publish(1);
      try {
        await publisher.ackOf(number);
        return number;
      } catch (error) {
        if (publisher.socket === "open" && !(error instanceof SessionLostError)) throw error;
        // Its session has to be replaced first.
        await this.#until(() => publisher.socket === "open");
      }
    }
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
    const side = (publisher: Publisher, { connectionId, judge }: Subscriber): LegacySide => ({
      subscriber: connectionId ?? "",
      seen: this.publishers.filter(({ id }) => judge.knows(id)).map(({ id }) => [id, judge.largest(id)]),
      lost: judge.lost,
      duplicated: judge.duplicated,
      carried: publisher.carried,
    });
    const legacy: Legacy = {
      rate: this.rate,
      official: side(this.publishers[0], this.subscribers[0]),
      protobuf: side(this.publishers[1], this.subscribers[1]),
    };
    sessionStorage.setItem(LEGACY_KEY, JSON.stringify(legacy));
  }

  async #reportReload(legacy: Legacy, publisherResumed: boolean, subscriberResumed: boolean): Promise<void> {
    const incident = this.#open("Page reloaded", [], false);
    await this.#settle(incident, async () => {});
    if (incident.hasFailed) return;
    const { acked } = await this.publishers[1].earlier();
    // Publishers that ended with the page have no fence; all of theirs came before those of the others.
    for (const { judge } of this.subscribers) judge.settleAll();
    const isCarried = new Set(legacy.protobuf.carried);
    const sentAgain = acked.filter((number) => isCarried.has(number)).length;
    const [official, protobuf] = this.subscribers;
    this.reload = {
      official: {
        ...this.#subscriberSide(official, legacy.official, false),
        sentAgain: 0,
        sentFirst: 0,
        uncertain: legacy.official.carried.length,
      },
      protobuf: {
        ...this.#subscriberSide(protobuf, legacy.protobuf, publisherResumed && subscriberResumed),
        sentAgain,
        sentFirst: acked.length - sentAgain,
        uncertain: isCarried.size - sentAgain,
      },
    };
    const { missed, duplicated, uncertain, isSameSession } = this.reload.protobuf;
    const unknown = uncertain > 0 ? `, nobody knows what became of ${uncertain}` : "";
    const officialMissed = this.reload.official.missed;
    incident.text = `Page reloaded · protobuf client: ${isSameSession ? "same session" : "new session"}, ${sentAgain} sent again${unknown}, ${missed} lost, ${duplicated} duplicated · official client: new session, ${officialMissed} ${plural(officialMissed, "message")} missed`;
  }

  #subscriberSide(
    { connectionId, judge, isRestored }: Subscriber,
    before: LegacySide,
    isResumed: boolean,
  ): Pick<ReloadSide, "isSameSession" | "connectionBefore" | "connectionAfter" | "missed" | "duplicated"> {
    return {
      isSameSession: isResumed && connectionId === before.subscriber,
      connectionBefore: before.subscriber,
      connectionAfter: connectionId ?? "",
      missed: isRestored ? judge.lost - before.lost : judge.lost + this.#missedBetween(before.seen, judge),
      duplicated: isRestored ? judge.duplicated - before.duplicated : judge.duplicated,
    };
  }

  /** What was missed between two sessions: the first had `seen` so far of each publisher, `judge` judges the second. */
  #missedBetween(seen: LegacySide["seen"], judge: Judge): number {
    return seen.reduce((missed, [id, largest]) => {
      // Of a publisher that ended with the page, a session that went on knows how far it came.
      const next = judge.first(id) ?? Math.max(...this.subscribers.map((subscriber) => subscriber.judge.largest(id))) + 1;
      return missed + Math.max(0, next - largest - 1);
    }, 0);
  }
}

function readLegacy(): Legacy | undefined {
  const text = sessionStorage.getItem(LEGACY_KEY);
  sessionStorage.removeItem(LEGACY_KEY);
  if (text === null) return undefined;
  try {
    const legacy = JSON.parse(text) as Legacy;
    // A page of another version may have left something else.
    const isWhole = [legacy.official, legacy.protobuf].every(({ seen, carried }) => Array.isArray(seen) && Array.isArray(carried));
    return isWhole ? legacy : undefined;
  } catch {
    return undefined;
  }
}
