/**
 * The reliability lab as it looks. Everything is read from the lab several times a second.
 */
import { h, setText } from "../dom.js";
import { Card } from "./cards.js";
import { Controls } from "./controls.js";
import type { Incident } from "./incident.js";
import { waitingFor } from "./incident.js";
import { Lab, type ReloadReport } from "./lab.js";
import { Plot } from "./plots.js";
import { TimelineView } from "./timeline_view.js";

const DEFAULT_RATE = 2;
const REFRESH_MS = 200;
const INCIDENTS_SHOWN = 8;

export class LabView {
  readonly title = "Reliability lab";
  readonly element: HTMLElement;
  readonly #lab = new Lab(DEFAULT_RATE);
  readonly #cards: Card[];
  readonly #controls: Controls;
  readonly #totals: { output: HTMLElement; value: () => number; isBad: boolean }[] = [];
  readonly #story = h("p", { class: "story", role: "status", "aria-live": "polite" });
  readonly #storyBox = h("div", { class: "story-box" }, this.#story);
  readonly #log = h("ol", { class: "incidents" });
  readonly #reload = h("section", { class: "panel reload", "aria-labelledby": "reload-title", hidden: true });
  readonly #gateway = h("p", { class: "gateway", id: "gateway" });
  readonly #throughput: Plot;
  readonly #waiting: Plot;
  /** How often the counters were written, for whoever reads them from outside. */
  #refreshes = 0;
  #deliveredBefore: number[] = [];
  #shownLog = "";
  #shownReload: ReloadReport | undefined;

  constructor() {
    const lab = this.#lab;
    this.#cards = lab.participants.map((participant) => new Card(participant, lab.publishers));
    this.#controls = new Controls(lab);
    const labels = lab.participants.map(({ label }) => label);
    this.#throughput = new Plot("Delivered a second", [
      { label: "S1", color: "s1" },
      { label: "S2", color: "s2" },
    ]);
    this.#waiting = new Plot("Waiting", [
      { label: "for an ack (P1 and P2)", color: "p1" },
      { label: "at the gateway (S1 and S2)", color: "s1" },
    ]);
    this.element = h(
      "div",
      { class: "lab" },
      lead(),
      h("section", { class: "verdict panel", "aria-label": "Verdict" }, this.#totalsList(), this.#storyBox),
      h("div", { class: "stage" }, new TimelineView(lab.timeline, labels).element, this.#controls.element),
      this.#reload,
      h("section", { class: "cards", "aria-label": "Publishers and subscribers" }, ...this.#cards.map(({ element }) => element)),
      h(
        "div",
        { class: "below" },
        h("section", { class: "panel plots", "aria-labelledby": "plots-title" }, h("h2", { id: "plots-title" }, "The last minute"), this.#throughput.element, this.#waiting.element),
        h("section", { class: "panel", "aria-labelledby": "log-title" }, h("h2", { id: "log-title" }, "What you broke"), this.#log),
      ),
      howItWorks(),
      this.#gateway,
    );
    this.element.dataset.group = lab.group;
    setInterval(() => this.#refresh(), REFRESH_MS);
    setInterval(() => this.#plot(), 1_000);
    void lab.start();
  }

  show(): void {
    this.#refresh();
  }

  #totalsList(): HTMLElement {
    const sum = (count: (subscriber: Lab["subscribers"][number]) => number) => () =>
      this.#lab.subscribers.reduce((total, subscriber) => total + count(subscriber), 0);
    const list = h("dl", { class: "totals" });
    const add = (key: string, label: string, value: () => number, isBad: boolean) => {
      const output = h("dd", { "data-total": key }, "0");
      this.#totals.push({ output, value, isBad });
      list.append(h("div", {}, h("dt", {}, label), output));
    };
    add("delivered", "delivered", sum(({ judge }) => judge.delivered), false);
    add("lost", "lost", sum(({ judge }) => judge.lost), true);
    add("duplicated", "duplicated", sum(({ judge }) => judge.duplicated), true);
    add("out-of-order", "out of order", sum(({ judge }) => judge.outOfOrder), true);
    return list;
  }

  #refresh(): void {
    if (!this.element.isConnected) return;
    this.element.dataset.ready = String(this.#lab.isReady);
    for (const card of this.#cards) card.refresh();
    this.#controls.refresh();
    for (const { output, value, isBad } of this.#totals) {
      const now = value();
      setText(output, now.toLocaleString("en"));
      output.dataset.value = String(now);
      output.classList.toggle("good", isBad && now === 0);
      output.classList.toggle("bad", isBad && now > 0);
    }
    this.#tellStory();
    this.#tellLog();
    this.#tellReload();
    this.#tellGateway();
    this.element.dataset.refreshes = String(++this.#refreshes);
  }

  #tellStory(): void {
    const [latest] = this.#lab.incidents;
    const idle = this.#lab.isReady
      ? "All is well. Choose a socket and cut it: what is published meanwhile waits, and then comes once."
      : "Connecting two publishers and two subscribers …";
    setText(this.#story, unbroken(latest?.text ?? idle));
    this.#storyBox.dataset.state = stateOf(latest);
  }

  #tellLog(): void {
    const shown = this.#lab.incidents.slice(0, INCIDENTS_SHOWN);
    const text = shown.map((incident) => incident.text).join("\n");
    if (text === this.#shownLog && this.#log.childElementCount > 0) return;
    this.#shownLog = text;
    const items = shown.map((incident) => h("li", { "data-state": stateOf(incident) }, unbroken(incident.text)));
    this.#log.replaceChildren(...(items.length > 0 ? items : [h("li", { class: "none" }, "Nothing yet.")]));
  }

  #tellReload(): void {
    const { reload } = this.#lab;
    if (reload === undefined || reload === this.#shownReload) return;
    this.#shownReload = reload;
    this.#reload.hidden = false;
    this.#reload.replaceChildren(...reloadTable(reload));
  }

  #tellGateway(): void {
    const { status } = this.#lab;
    if (status === undefined) return;
    const keeps =
      status.store === "memory"
        ? "keeps sessions in memory: a kill ends them"
        : `keeps sessions on disk (durability ${status.durability})`;
    setText(this.#gateway, `Gateway ${status.version}, process ${status.process}, ${keeps}. Group ${this.#lab.group}.`);
    this.#gateway.dataset.boot = status.boot;
  }

  #plot(): void {
    const { publishers, subscribers } = this.#lab;
    const delivered = subscribers.map(({ judge }) => judge.delivered);
    const rates = delivered.map((now, index) => now - (this.#deliveredBefore[index] ?? now));
    this.#deliveredBefore = delivered;
    if (!this.element.isConnected) return;
    this.#throughput.push(rates);
    const outboxes = publishers.reduce((sum, { outboxDepth }) => sum + outboxDepth, 0);
    const waiting = subscribers.reduce((sum, subscriber) => sum + waitingFor(subscriber, publishers), 0);
    this.#waiting.push([outboxes, waiting]);
  }
}

/** Keeps a number with its word, and a dot at the end of a line. */
function unbroken(text: string): string {
  return text.replaceAll(" · ", "\u00a0· ").replaceAll(/(\d) (?=\S)/g, "$1\u00a0");
}

function stateOf(incident: Incident | undefined): string {
  if (incident === undefined) return "idle";
  if (incident.verdict === undefined) return incident.hasFailed ? "failed" : "running";
  const { lost, duplicated, outOfOrder } = incident.verdict;
  return lost + duplicated + outOfOrder === 0 ? "good" : "bad";
}

function lead(): HTMLElement {
  return h(
    "section",
    { class: "lead" },
    h("h1", {}, "Break the connection. Each message still arrives exactly once."),
    h(
      "p",
      {},
      "Two publishers send numbered messages through this gateway to two subscribers: four clients in this page, each with a WebSocket of its own. Cut one, lose an acknowledgement, kill the gateway. A session outlives its sockets, so what was sent meanwhile waits, comes once, and in order.",
    ),
  );
}

function howItWorks(): HTMLElement {
  const steps = [
    ["Publishing", "Each message has an ack id. The client sends it again under the same id until the gateway acknowledges it, and the gateway executes it once: a repeat is answered “Duplicate”."],
    ["Delivering", "The gateway numbers what a session gets with sequence ids, and keeps it until the client acknowledges the id."],
    ["Coming back", "After a drop the client returns with its connection id and a token. The gateway redelivers what was not acknowledged, under the same ids, and the client drops those that it has passed."],
    ["Surviving a kill", "Sessions and messages are in a log on the disk before they are acknowledged. The next process reads it and goes on."],
  ];
  return h(
    "details",
    { class: "panel how" },
    h("summary", {}, "How does it work?"),
    h("dl", {}, ...steps.map(([term, text]) => h("div", {}, h("dt", {}, term), h("dd", {}, text)))),
  );
}

function reloadTable({ official, protobuf }: ReloadReport): Node[] {
  const id = (text: string) => text.slice(0, 6) || "none";
  const session = (side: ReloadReport["official"]) =>
    side.isSameSession ? `the same, ${id(side.connectionAfter)}` : `a new one, ${id(side.connectionBefore)} → ${id(side.connectionAfter)}`;
  const unanswered = ({ sentAgain, sentFirst, uncertain }: ReloadReport["official"]) => {
    const parts = [
      sentAgain > 0 && `${sentAgain} sent again, all answered`,
      sentFirst > 0 && `${sentFirst} sent for the first time, all answered`,
      uncertain > 0 && `${uncertain} forgotten: nobody knows which arrived`,
    ];
    return parts.filter((part) => part !== false).join("; ") || "none";
  };
  const rows: [string, string, string, string][] = [
    ["session", "Session", session(official), session(protobuf)],
    ["missed", "Messages the subscriber missed", String(official.missed), String(protobuf.missed)],
    ["duplicated", "Delivered twice", String(official.duplicated), String(protobuf.duplicated)],
    ["unanswered", "Publishes without an answer", unanswered(official), unanswered(protobuf)],
  ];
  const head = h("tr", {}, h("td"), h("th", { scope: "col" }, "Official client"), h("th", { scope: "col" }, "Protobuf client"));
  const body = rows.map(([key, name, one, other]) =>
    h("tr", { "data-row": key }, h("th", { scope: "row" }, name), h("td", {}, one), h("td", {}, other)),
  );
  return [
    h("h2", { id: "reload-title" }, "What the reload did"),
    h("p", {}, "The official client’s session ends with its page. The protobuf client keeps its session in the tab and takes it up again."),
    h("div", { class: "table-box" }, h("table", {}, h("thead", {}, head), h("tbody", {}, ...body))),
  ];
}
