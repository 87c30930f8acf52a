/** A card for each participant: its session, its socket, its counters. */
import { h, setText } from "../dom.js";
import { waitingFor } from "./incident.js";
import type { Participant, Publisher, Subscriber } from "./participants.js";

type Counter = [key: string, label: string, value: () => number];

export class Card {
  readonly element: HTMLElement;
  readonly #participant: Participant;
  readonly #counters: { output: HTMLElement; value: () => number }[] = [];
  readonly #state = h("span", { class: "pill" });
  readonly #session = h("code", { "data-session": true });

  constructor(participant: Participant, publishers: readonly Publisher[]) {
    this.#participant = participant;
    const counters =
      participant.role === "publisher"
        ? publisherCounters(participant as Publisher)
        : subscriberCounters(participant as Subscriber, publishers);
    const list = h("dl", { class: "counters" });
    for (const [key, label, value] of counters) {
      const output = h("dd", { "data-counter": key }, "0");
      this.#counters.push({ output, value });
      list.append(h("div", {}, h("dt", {}, label), output));
    }
    const client = participant.kind === "official" ? "official client, JSON" : "our client, protobuf";
    this.element = h(
      "article",
      { class: `card ${participant.label.toLowerCase()}`, "data-participant": participant.label },
      h("h3", {}, h("span", { class: "label" }, participant.label), participant.name, this.#state),
      h("p", { class: "kind" }, `${client} · session `, this.#session),
      list,
    );
  }

  refresh(): void {
    const { socket, connectionId } = this.#participant;
    const texts = { connecting: "connecting", open: "connected", down: "no socket" };
    setText(this.#state, texts[socket]);
    this.#state.dataset.socket = socket;
    if (this.#participant.role === "publisher") this.element.dataset.publisher = (this.#participant as Publisher).id;
    setText(this.#session, connectionId?.slice(0, 6) ?? "none yet");
    this.#session.dataset.session = connectionId ?? "";
    for (const { output, value } of this.#counters) {
      const now = value();
      setText(output, now.toLocaleString("en"));
      output.dataset.value = String(now);
      output.classList.toggle("some", now > 0);
    }
  }
}

function publisherCounters(publisher: Publisher): Counter[] {
  return [
    ["sent", "Sent", () => publisher.sent],
    ["acked", "Acknowledged", () => publisher.acked],
    ["outbox", "Waiting for an ack", () => publisher.outboxDepth],
    ["again", "Sent again", () => publisher.sentAgain],
    ["answered-duplicate", "Answered “Duplicate”", () => publisher.answeredDuplicate],
    ["resumed", "Reconnects", () => publisher.sockets.resumed + publisher.sockets.replaced],
  ];
}

function subscriberCounters(subscriber: Subscriber, publishers: readonly Publisher[]): Counter[] {
  return [
    ["delivered", "Delivered", () => subscriber.judge.delivered],
    ["waiting", "Waiting at the gateway", () => waitingFor(subscriber, publishers)],
    ["suppressed", "Came twice, dropped", () => subscriber.suppressed],
    ["gaps", "Gaps", () => subscriber.judge.gaps + subscriber.judge.lost],
    ["out-of-order", "Out of order", () => subscriber.judge.outOfOrder],
    ["resumed", "Reconnects", () => subscriber.sockets.resumed + subscriber.sockets.replaced],
  ];
}
