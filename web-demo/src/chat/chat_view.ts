/**
 * The chat as it looks: a name, a room, what was said, and a tick for each step of a message.
 */
import { h, setText } from "../dom.js";
import { TabOwnership } from "../protobuf-client/tab_ownership.js";
import { Room, type Saying } from "./room.js";
import { NAME_CHARACTERS_MAX, TEXT_CHARACTERS_MAX } from "./wire.js";

const USER_KEY = "oncewire/chat-user";
/** The room that the tab is in. */
const ROOM_KEY = "oncewire/chat-room";
const NAMES = ["Ada", "Grace", "Edsger", "Barbara", "Leslie", "Radia", "Ken", "Lynn"];

export class ChatView {
  readonly title = "Chat";
  readonly element: HTMLElement;
  readonly #user = h("input", { id: "chat-user", required: true, maxlength: NAME_CHARACTERS_MAX, autocomplete: "off" });
  readonly #room = h("input", { id: "chat-room", required: true, maxlength: NAME_CHARACTERS_MAX, autocomplete: "off", list: "chat-rooms" });
  readonly #list = h("ol");
  readonly #log = h("div", { class: "sayings", role: "log", "aria-label": "Messages", tabindex: "0" }, this.#list);
  readonly #text = h("input", { id: "chat-text", maxlength: TEXT_CHARACTERS_MAX, autocomplete: "off", placeholder: "Write a message" });
  readonly #send = h("button", { type: "submit", class: "primary", disabled: true }, "Send");
  readonly #state = h("p", { class: "room-state", role: "status" });
  readonly #items = new Map<string, HTMLElement>();
  /** Of the name. */
  readonly #ownership = new TabOwnership(navigator.locks);
  #current: Room | undefined;

  constructor() {
    const kept = { user: sessionStorage.getItem(USER_KEY), room: sessionStorage.getItem(ROOM_KEY) };
    const names = shuffled(NAMES);
    this.#user.value = kept.user ?? names[0] ?? "";
    this.#room.value = kept.room ?? "lobby";
    const rooms = h("datalist", { id: "chat-rooms" }, ...["lobby", "kitchen", "workshop"].map((value) => h("option", { value })));
    const enter = h(
      "form",
      { class: "enter panel" },
      field("chat-user", "Your name", this.#user),
      field("chat-room", "Room", this.#room),
      rooms,
      h("button", { type: "submit", class: "primary", id: "chat-enter" }, "Enter the room"),
    );
    const say = h(
      "form",
      { class: "say" },
      h("label", { class: "visually-hidden", for: "chat-text" }, "Message"),
      this.#text,
      this.#send,
    );
    enter.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.#enter();
    });
    say.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#say();
    });
    this.element = h(
      "div",
      { class: "chat" },
      h(
        "section",
        { class: "lead" },
        h("h1", {}, "Chat, with a tick for each step"),
        h("p", {}, "Open this page in a second tab and enter the same room under another name. What you send while the connection is down waits here, and goes out once when it is back."),
      ),
      enter,
      h("section", { class: "panel talk", "aria-label": "Room" }, this.#state, this.#log, say, tickLegend()),
    );
    this.#tellState("Enter a room to talk.");
    void this.#comeBack(kept.user === null ? names : [kept.user, ...names], kept.room !== null);
  }

  show(): void {
    this.#scroll();
  }

  /** Takes a name that no other tab has, a duplicate of this one included, and goes back to the room after a reload. */
  async #comeBack(names: string[], wasInRoom: boolean): Promise<void> {
    const proposed = this.#user.value;
    const name = await this.#freeName(names);
    // Somebody who types is faster.
    if (this.#user.value === proposed) this.#user.value = name;
    if (wasInRoom && this.#current === undefined) await this.#enter();
  }

  /** The first that no other tab has, which is this tab's as long as its page lives. */
  async #freeName(names: string[]): Promise<string> {
    const [first] = names;
    if (!("locks" in navigator)) return first ?? "";
    for (const name of names) {
      if (await this.#ownership.claim(`of the chat, as ${name}`)) return name;
    }
    return `${first} ${Math.ceil(Math.random() * 1_000)}`;
  }

  async #enter(): Promise<void> {
    const [user, name] = [this.#user.value.trim(), this.#room.value.trim()];
    if (user === "" || name === "") return;
    sessionStorage.setItem(USER_KEY, user);
    sessionStorage.setItem(ROOM_KEY, name);
    this.#current?.leave();
    this.#items.clear();
    this.#list.replaceChildren();
    this.#send.disabled = true;
    this.#tellState(`Entering ${name} …`);
    const room = new Room(name, user, {
      onChange: (saying) => this.#current === room && this.#show(saying),
      onSocket: (isOpen) => {
        if (this.#current !== room || this.#send.disabled) return;
        this.#tellState(isOpen ? `You are ${user} in ${name}.` : "The connection is down. What you send waits.", isOpen);
      },
    });
    this.#current = room;
    await room.enter();
    if (this.#current !== room) return;
    this.#send.disabled = false;
    this.#tellState(`You are ${user} in ${name}.`, true);
    this.#text.focus();
  }

  #say(): void {
    const text = this.#text.value.trim();
    if (text === "" || this.#send.disabled) return;
    this.#text.value = "";
    this.#current?.say(text);
  }

  #show(saying: Saying): void {
    const known = this.#items.get(saying.id);
    const item = known ?? h("li", { class: saying.isMine ? "mine" : "theirs" }, h("b", {}, saying.from), h("span", {}, saying.text));
    if (saying.isMine) {
      const ticks = item.querySelector(".ticks") ?? item.appendChild(h("small", { class: "ticks" }));
      const step = stepOf(saying);
      (ticks as HTMLElement).dataset.step = step;
      ticks.replaceChildren(
        h("span", { "aria-hidden": "true" }, STEPS[step].sign),
        h("span", {}, step === "received" ? `received by ${saying.receivedBy.join(", ")}` : STEPS[step].text),
      );
    }
    if (known !== undefined) return;
    this.#items.set(saying.id, item);
    this.#list.append(item);
    this.#scroll();
  }

  #scroll(): void {
    this.#log.scrollTop = this.#log.scrollHeight;
  }

  #tellState(text: string, isOpen = false): void {
    setText(this.#state, text);
    this.#state.dataset.open = String(isOpen);
  }
}

function shuffled(names: readonly string[]): string[] {
  return names.map((name) => ({ name, at: Math.random() })).sort((a, b) => a.at - b.at).map(({ name }) => name);
}

type Step = "waiting" | "sent" | "acknowledged" | "received";

const STEPS: Record<Step, { sign: string; text: string }> = {
  waiting: { sign: "○", text: "waiting" },
  sent: { sign: "✓", text: "sent" },
  acknowledged: { sign: "✓✓", text: "acknowledged" },
  received: { sign: "✓✓", text: "received" },
};

function stepOf({ isSent, isAcked, receivedBy }: Saying): Step {
  if (receivedBy.length > 0) return "received";
  if (isAcked) return "acknowledged";
  return isSent ? "sent" : "waiting";
}

function field(id: string, label: string, input: HTMLInputElement): HTMLElement {
  return h("p", { class: "field" }, h("label", { for: id }, label), input);
}

function tickLegend(): HTMLElement {
  const meanings: [Step, string][] = [
    ["sent", "sent: handed to the socket"],
    ["acknowledged", "acknowledged: the gateway has it and will deliver it"],
    ["received", "received: another page has shown it and said so"],
  ];
  const items = meanings.map(([step, text]) =>
    h("li", { "data-step": step }, h("span", { "aria-hidden": "true" }, STEPS[step].sign), text),
  );
  return h("ul", { class: "tick-legend" }, ...items);
}
