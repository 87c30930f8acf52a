/**
 * Draws the timeline as it happens: publishers above, subscribers below, time from left to right. The drawing has a
 * text alternative: its label, and a list of the latest events.
 */
import { cssValue, h, isMotionReduced, onClick } from "../dom.js";
import { onThemeChange } from "../theme.js";
import type { Entry, Timeline } from "./timeline.js";

const HEIGHT = 380;
const GUTTER = 44;
const MARGIN = 14;
/** Where each lane is: two publishers, two subscribers. */
const LANES_Y = [50, 126, 262, 340];
/** The gateway between them. */
const BAND_Y = 184;
const BAND_HEIGHT = 20;
/** More entries than this are drawn without lines and numbers. */
const DENSE_ENTRIES = 1_200;
/** A delivery that took longer waited at the gateway. */
const WAITED_MS = 250;
const TEXT_ENTRIES = 14;

interface Palette {
  lane: string;
  text: string;
  muted: string;
  publishers: string[];
  warn: string;
  band: string;
  surface: string;
}

export class TimelineView {
  readonly element: HTMLElement;
  readonly #timeline: Timeline;
  readonly #labels: readonly string[];
  readonly #canvas = h("canvas", { role: "img", "aria-label": "Timeline of messages" });
  readonly #list = h("ol", { class: "events" });
  readonly #details: HTMLDetailsElement;
  #pausedAt: number | undefined;
  #palette: Palette | undefined;
  #lastLabel = 0;

  constructor(timeline: Timeline, labels: readonly string[]) {
    this.#timeline = timeline;
    this.#labels = labels;
    this.#details = h("details", { class: "as-text" }, h("summary", {}, "Latest events as text"), this.#list);
    const pause = h("button", { type: "button", class: "quiet", "aria-pressed": "false" }, "Pause the drawing");
    onClick(pause, () => {
      this.#pausedAt = this.#pausedAt === undefined ? performance.now() : undefined;
      pause.setAttribute("aria-pressed", String(this.#pausedAt !== undefined));
    });
    this.element = h(
      "section",
      { class: "panel timeline", "aria-labelledby": "timeline-title" },
      h("div", { class: "panel-head" }, h("h2", { id: "timeline-title" }, "As it happens"), pause),
      h("div", { class: "canvas-box" }, this.#canvas),
      legend(),
      this.#details,
    );
    onThemeChange(() => (this.#palette = undefined));
    const draw = () => {
      if (this.element.isConnected && !document.hidden) this.#draw();
      requestAnimationFrame(draw);
    };
    requestAnimationFrame(draw);
  }

  #now(): number {
    const now = this.#pausedAt ?? performance.now();
    return isMotionReduced() ? Math.floor(now / 1_000) * 1_000 : now;
  }

  #draw(): void {
    const box = this.#canvas.parentElement;
    const context = this.#canvas.getContext("2d");
    if (box === null || context === null) return;
    const width = box.clientWidth;
    const scale = devicePixelRatio;
    if (this.#canvas.width !== Math.round(width * scale) || this.#canvas.height !== Math.round(HEIGHT * scale)) {
      this.#canvas.width = Math.round(width * scale);
      this.#canvas.height = Math.round(HEIGHT * scale);
    }
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, HEIGHT);
    this.#palette ??= readPalette();
    const now = this.#now();
    const span = width < 560 ? 6_000 : 12_000;
    const x = (at: number) => width - MARGIN - ((now - at) / span) * (width - MARGIN - GUTTER);
    const begin = now - span;
    const visible = this.#timeline.entries.filter(({ at }) => at >= begin && at <= now);
    new Drawing(context, this.#palette, width, x, this.#timeline, this.#labels).draw(visible, begin, now);
    this.#tell(visible);
  }

  #tell(visible: readonly Entry[]): void {
    const now = performance.now();
    if (now - this.#lastLabel < 1_000) return;
    this.#lastLabel = now;
    const count = (kind: Entry["kind"]) => visible.filter((entry) => entry.kind === kind).length;
    const label = `Timeline of the last seconds: ${count("publish")} published, ${count("ack")} acknowledged, ${count("deliver")} delivered, ${count("suppressed")} repeated frames dropped`;
    this.#canvas.setAttribute("aria-label", label);
    if (!this.#details.open) return;
    const latest = this.#timeline.entries.slice(-TEXT_ENTRIES).reverse();
    this.#list.replaceChildren(...latest.map((entry) => h("li", {}, this.#describe(entry))));
  }

  #describe(entry: Entry): string {
    const lane = entry.lane === undefined ? "All" : (this.#labels[entry.lane] ?? "");
    const of = "publisher" in entry ? `${this.#labels[entry.publisher]} #${entry.number}` : "";
    switch (entry.kind) {
      case "publish":
        return `${lane} ${entry.again ? "sent again" : "sent"} #${entry.number}`;
      case "ack":
        return `${lane} got the ack of #${entry.number}${entry.duplicate ? ": Duplicate" : ""}`;
      case "deliver":
        return `${lane} was delivered ${of}`;
      case "suppressed":
        return `${lane} dropped ${of}, which came again`;
      case "sequenceAck":
        return `${lane} acknowledged up to sequence id ${entry.sequenceId}`;
      case "fault":
        return `${lane}: ${entry.label}`;
    }
  }
}

/** One picture. */
class Drawing {
  readonly #lastNumberX = new Map<string, number>();

  constructor(
    private readonly context: CanvasRenderingContext2D,
    private readonly palette: Palette,
    private readonly width: number,
    private readonly x: (at: number) => number,
    private readonly timeline: Timeline,
    private readonly labels: readonly string[],
  ) {}

  draw(visible: readonly Entry[], begin: number, now: number): void {
    this.#outages(begin, now);
    this.#lanes();
    const isDense = visible.length > DENSE_ENTRIES;
    if (!isDense) for (const entry of visible) if (entry.kind === "deliver") this.#wire(entry);
    for (const entry of visible) this.#mark(entry, isDense);
    this.#gutter();
  }

  #lanes(): void {
    const { context, palette, width } = this;
    context.lineWidth = 1;
    context.strokeStyle = palette.lane;
    for (const y of LANES_Y) line(context, GUTTER, y, width - MARGIN, y);
    context.fillStyle = palette.band;
    context.fillRect(GUTTER, BAND_Y, width - MARGIN - GUTTER, BAND_HEIGHT);
    context.fillStyle = palette.muted;
    context.font = "600 11px system-ui, sans-serif";
    context.textAlign = "left";
    context.fillText("gateway", GUTTER + 8, BAND_Y + 14);
  }

  #outages(begin: number, now: number): void {
    const { context, palette } = this;
    for (const { lane, begin: from, end = now } of this.timeline.outages) {
      if (end < begin) continue;
      const left = Math.max(GUTTER, this.x(from));
      const right = this.x(Math.min(end, now));
      const y = LANES_Y[lane] ?? 0;
      context.globalAlpha = 0.16;
      context.fillStyle = palette.warn;
      context.fillRect(left, y - 17, Math.max(3, right - left), 34);
      context.globalAlpha = 1;
      context.fillRect(left, y - 17, 2, 34);
    }
  }

  /** From the publish to the delivery; those that had to wait are drawn stronger. */
  #wire(entry: Entry & { kind: "deliver" }): void {
    if (entry.publishedAt === undefined) return;
    const { context } = this;
    const hasWaited = entry.at - entry.publishedAt > WAITED_MS;
    context.strokeStyle = this.palette.publishers[entry.publisher] ?? "";
    context.globalAlpha = hasWaited ? 0.75 : 0.28;
    context.lineWidth = hasWaited ? 1.4 : 1;
    const from = Math.max(GUTTER, this.x(entry.publishedAt));
    line(context, from, LANES_Y[entry.publisher] ?? 0, this.x(entry.at), LANES_Y[entry.lane] ?? 0);
    context.globalAlpha = 1;
  }

  #mark(entry: Entry, isDense: boolean): void {
    const { context, palette } = this;
    const x = this.x(entry.at);
    if (x < GUTTER) return;
    const y = entry.lane === undefined ? 0 : (LANES_Y[entry.lane] ?? 0);
    switch (entry.kind) {
      case "publish": {
        const color = palette.publishers[entry.publisher] ?? "";
        if (entry.again) ring(context, x, y, 8, palette.warn);
        dot(context, x, y, 4.5, this.timeline.isAcked(entry.publisher, entry.number) ? color : palette.surface, color);
        if (!isDense) this.#number(entry, x, y - 10);
        break;
      }
      case "ack":
        if (entry.duplicate) diamond(context, x, y + 13, palette.warn);
        else if (!isDense) tick(context, x, y + 12, palette.publishers[entry.publisher] ?? "");
        break;
      case "deliver": {
        const color = palette.publishers[entry.publisher] ?? "";
        dot(context, x, y, 4.5, color, color);
        if (!isDense) this.#number(entry, x, y + 18);
        break;
      }
      case "suppressed":
        cross(context, x, y - 12, palette.warn);
        break;
      case "sequenceAck":
        triangle(context, x, y - 9, palette.muted);
        break;
      case "fault":
        this.#fault(entry, x, y);
        break;
    }
  }

  #fault(entry: Entry & { kind: "fault" }, x: number, y: number): void {
    const { context, palette } = this;
    const [top, bottom] = entry.lane === undefined ? [16, HEIGHT - 6] : [y - 24, y + 24];
    context.strokeStyle = palette.warn;
    context.lineWidth = 2;
    line(context, x, top, x, bottom);
    context.fillStyle = palette.warn;
    context.font = "600 11px system-ui, sans-serif";
    context.textAlign = x > this.width - 70 ? "right" : "left";
    context.fillText(entry.label, x > this.width - 70 ? x - 5 : x + 5, entry.lane === undefined ? 13 : top + 2);
  }

  /** A message's number, where there is room for it. */
  #number(entry: Entry & { kind: "publish" | "deliver" }, x: number, y: number): void {
    const key = `${entry.kind}${entry.lane}`;
    const last = this.#lastNumberX.get(key) ?? -Infinity;
    if (x - last < 24) return;
    this.#lastNumberX.set(key, x);
    this.context.fillStyle = this.palette.muted;
    this.context.font = "10px ui-monospace, monospace";
    this.context.textAlign = "center";
    this.context.fillText(String(entry.number), x, y);
  }

  #gutter(): void {
    const { context, palette } = this;
    context.textAlign = "left";
    for (const [lane, y] of LANES_Y.entries()) {
      context.fillStyle = palette.publishers[lane] ?? palette.text;
      context.font = "700 13px system-ui, sans-serif";
      context.fillText(this.labels[lane] ?? "", 8, y + 4);
    }
  }
}

function readPalette(): Palette {
  return {
    lane: cssValue("--line"),
    text: cssValue("--text"),
    muted: cssValue("--muted"),
    publishers: [cssValue("--p1"), cssValue("--p2")],
    warn: cssValue("--warn"),
    band: cssValue("--accent-soft"),
    surface: cssValue("--surface"),
  };
}

function legend(): HTMLElement {
  const blue = (palette: Palette) => palette.publishers[0] ?? "";
  const again = (context: CanvasRenderingContext2D, palette: Palette) => {
    ring(context, 10, 8, 7, palette.warn);
    dot(context, 10, 8, 3.5, blue(palette), blue(palette));
  };
  const items: [string, (context: CanvasRenderingContext2D, palette: Palette) => void][] = [
    ["sent", (context, palette) => dot(context, 10, 8, 4.5, palette.surface, blue(palette))],
    ["acknowledged", (context, palette) => dot(context, 10, 8, 4.5, blue(palette), blue(palette))],
    ["sent again, same ack id", again],
    ["answered “Duplicate”", (context, palette) => diamond(context, 10, 8, palette.warn)],
    ["came twice, dropped", (context, palette) => cross(context, 10, 8, palette.warn)],
    ["sequence ack", (context, palette) => triangle(context, 10, 8, palette.muted)],
  ];
  const canvases: (() => void)[] = [];
  const list = h("ul", { class: "legend" });
  for (const [text, paint] of items) {
    const canvas = h("canvas", { width: 40, height: 32, "aria-hidden": "true" });
    canvases.push(() => {
      const context = canvas.getContext("2d");
      context?.setTransform(2, 0, 0, 2, 0, 0);
      context?.clearRect(0, 0, 20, 16);
      if (context) paint(context, readPalette());
    });
    list.append(h("li", {}, canvas, text));
  }
  list.append(h("li", {}, h("span", { class: "swatch-down", "aria-hidden": "true" }), "no socket"));
  const paintAll = () => canvases.forEach((paint) => paint());
  onThemeChange(paintAll);
  requestAnimationFrame(paintAll);
  return list;
}

function line(context: CanvasRenderingContext2D, x1: number, y1: number, x2: number, y2: number): void {
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x2, y2);
  context.stroke();
}

function dot(context: CanvasRenderingContext2D, x: number, y: number, r: number, fill: string, stroke: string): void {
  context.beginPath();
  context.arc(x, y, r, 0, 2 * Math.PI);
  context.fillStyle = fill;
  context.fill();
  context.lineWidth = 1.8;
  context.strokeStyle = stroke;
  context.stroke();
}

function ring(context: CanvasRenderingContext2D, x: number, y: number, r: number, stroke: string): void {
  context.beginPath();
  context.arc(x, y, r, 0, 2 * Math.PI);
  context.lineWidth = 1.8;
  context.strokeStyle = stroke;
  context.stroke();
}

function shape(context: CanvasRenderingContext2D, fill: string, points: [number, number][]): void {
  context.beginPath();
  for (const [x, y] of points) context.lineTo(x, y);
  context.closePath();
  context.fillStyle = fill;
  context.fill();
}

function diamond(context: CanvasRenderingContext2D, x: number, y: number, fill: string): void {
  shape(context, fill, [
    [x, y - 5],
    [x + 5, y],
    [x, y + 5],
    [x - 5, y],
  ]);
}

function triangle(context: CanvasRenderingContext2D, x: number, y: number, fill: string): void {
  shape(context, fill, [
    [x, y - 4],
    [x + 4, y + 3],
    [x - 4, y + 3],
  ]);
}

function tick(context: CanvasRenderingContext2D, x: number, y: number, stroke: string): void {
  context.lineWidth = 1.5;
  context.strokeStyle = stroke;
  context.beginPath();
  context.moveTo(x - 3, y);
  context.lineTo(x - 0.5, y + 2.5);
  context.lineTo(x + 4, y - 3);
  context.stroke();
}

function cross(context: CanvasRenderingContext2D, x: number, y: number, stroke: string): void {
  context.lineWidth = 1.8;
  context.strokeStyle = stroke;
  line(context, x - 3.5, y - 3.5, x + 3.5, y + 3.5);
  line(context, x - 3.5, y + 3.5, x + 3.5, y - 3.5);
}
