/** The buttons: how fast to publish, what to break, and whom it hits. */
import { h, onClick, setText } from "../dom.js";
import { FLOOD_MESSAGES, type Lab, STALL_MS } from "./lab.js";

const RATES = [0, 2, 5, 20, 100];

interface Fault {
  button: HTMLButtonElement;
  /** What it does, or why it can't be done now. */
  hint: HTMLElement;
  does: string;
  /** Why it can't be done now, if that is so. */
  obstacle: () => string | undefined;
}

export class Controls {
  readonly element: HTMLElement;
  readonly #lab: Lab;
  readonly #faults: Fault[] = [];
  #target = 2;

  constructor(lab: Lab) {
    this.#lab = lab;
    const strike = (fault: "cut" | "stall" | "lose-next-ack") => () => {
      const target = lab.participants[this.#target];
      if (target !== undefined) void lab.strike(fault, target);
    };
    const cut = this.#button("cut", "Cut my socket", "dropped without a goodbye", strike("cut"));
    cut.classList.add("primary");
    const stall = this.#button("stall", "Stall it", `nothing passes for ${STALL_MS / 1000} s`, strike("stall"));
    const isPublisher = () => lab.participants[this.#target]?.role === "publisher";
    const robAck = this.#button("lose-ack", "Lose the next ack", "stored, but you never hear", strike("lose-next-ack"), () =>
      isPublisher() ? undefined : "choose P1 or P2: only a publisher waits for acks",
    );
    const kill = this.#button("kill", "Kill the gateway", "SIGKILL, then a new process", () => void lab.killGateway(), () =>
      lab.status?.canRestart === false ? "nobody would start it again: use oncewire dev" : undefined,
    );
    const flood = this.#button("flood", "Flood", `${FLOOD_MESSAGES.toLocaleString("en")} messages at once`, () => void lab.flood());
    const reload = this.#button("reload", "Reload this page", "in the middle of a burst", () => lab.reloadPage());
    const everywhere = h("div", { class: "buttons" }, kill, flood, reload);
    this.element = h(
      "section",
      { class: "panel controls", "aria-labelledby": "controls-title" },
      h("h2", { id: "controls-title" }, "Break something"),
      this.#targets(),
      h("div", { class: "buttons" }, cut, stall, robAck),
      h("p", { class: "group-title" }, "Everything at once"),
      everywhere,
      this.#rate(),
    );
  }

  refresh(): void {
    for (const { button, hint, does, obstacle } of this.#faults) {
      const because = obstacle() ?? (this.#lab.isReady ? undefined : "the clients are still connecting");
      button.disabled = because !== undefined;
      setText(hint, because ?? does);
    }
  }

  #button(id: string, title: string, does: string, act: () => void, obstacle: Fault["obstacle"] = () => undefined): HTMLButtonElement {
    const hint = h("small", {}, does);
    const button = h("button", { type: "button", id: `fault-${id}`, disabled: true }, h("b", {}, title), hint);
    onClick(button, act);
    this.#faults.push({ button, hint, does, obstacle });
    return button;
  }

  #targets(): HTMLElement {
    const choices = this.#lab.participants.map(({ label, name, role }, index) => {
      const radio = h("input", { type: "radio", name: "target", value: label, checked: index === this.#target });
      radio.addEventListener("change", () => {
        this.#target = index;
        this.refresh();
      });
      return h("label", { class: `choice ${label.toLowerCase()}`, title: `${name}, ${role}` }, radio, h("span", {}, label));
    });
    return h(
      "fieldset",
      { class: "targets" },
      h("legend", {}, "Whose socket? P publishes, S subscribes"),
      h("div", { class: "choices" }, ...choices),
    );
  }

  #rate(): HTMLElement {
    const select = h("select", { id: "rate" });
    for (const rate of RATES) {
      const text = rate === 0 ? "none" : `${rate} a second`;
      select.append(h("option", { value: rate, selected: rate === this.#lab.rate }, text));
    }
    select.addEventListener("change", () => {
      this.#lab.rate = Number(select.value);
    });
    return h("p", { class: "rate" }, h("label", { for: "rate" }, "Each publisher sends "), select);
  }
}
