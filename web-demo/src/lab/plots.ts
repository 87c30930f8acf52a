/**
 * Two plots of the last minute: messages delivered a second, and messages that wait.
 */
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

import { cssValue, h } from "../dom.js";
import { onThemeChange } from "../theme.js";

const SECONDS = 60;
const HEIGHT = 150;

interface Series {
  label: string;
  /** The custom property with its colour. */
  color: string;
}

/** A plot that gets one value of each series every second. */
export class Plot {
  readonly element: HTMLElement;
  readonly #series: readonly Series[];
  readonly #box = h("div", { class: "plot-box", "aria-hidden": "true" });
  readonly #summary = h("p", { class: "visually-hidden" });
  readonly #data: number[][];
  #plot: uPlot | undefined;

  constructor(title: string, series: readonly Series[]) {
    this.#series = series;
    this.#data = [seconds(), ...series.map(() => new Array<number>(SECONDS).fill(0))];
    const keys = series.map(({ label, color }) => h("li", {}, h("span", { class: `key ${color}` }), label));
    this.element = h(
      "figure",
      { class: "plot" },
      h("figcaption", {}, title, h("ul", { class: "keys" }, ...keys)),
      this.#box,
      this.#summary,
    );
    new ResizeObserver(() => this.#plot?.setSize({ width: this.#box.clientWidth, height: HEIGHT })).observe(this.#box);
    onThemeChange(() => this.#make());
  }

  push(values: readonly number[]): void {
    for (const [index, value] of values.entries()) {
      const column = this.#data[index + 1];
      column?.shift();
      column?.push(value);
    }
    this.#summary.textContent = this.#series.map(({ label }, index) => `${label}: ${values[index]}`).join(", ");
    if (this.#plot === undefined && this.#box.clientWidth > 0) this.#make();
    this.#plot?.setData(this.#data as uPlot.AlignedData);
  }

  #make(): void {
    if (this.#box.clientWidth === 0) return;
    this.#plot?.destroy();
    const axis = { stroke: cssValue("--muted"), grid: { stroke: cssValue("--line"), width: 1 }, ticks: { show: false } };
    const options: uPlot.Options = {
      width: this.#box.clientWidth,
      height: HEIGHT,
      cursor: { show: false },
      legend: { show: false },
      scales: { x: { time: false }, y: { range: (_, __, max) => [0, Math.max(4, max * 1.1)] } },
      axes: [{ ...axis, values: (_, splits) => splits.map((second) => `${second} s`) }, { ...axis, size: 46 }],
      series: [
        {},
        ...this.#series.map(({ label, color }) => ({ label, stroke: cssValue(`--${color}`), width: 2, points: { show: false } })),
      ],
    };
    this.#plot = new uPlot(options, this.#data as uPlot.AlignedData, this.#box);
  }
}

function seconds(): number[] {
  return Array.from({ length: SECONDS }, (_, index) => index - SECONDS + 1);
}
