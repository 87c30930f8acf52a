/**
 * The page: its two views and what is around them.
 */
import "./styles/base.css";
import "./styles/lab.css";
import "./styles/chat.css";

import { ChatView } from "./chat/chat_view.js";
import { h, onClick, setText } from "./dom.js";
import { LabView } from "./lab/lab_view.js";
import { applyTheme, setTheme, theme, type Theme } from "./theme.js";

interface View {
  readonly element: HTMLElement;
  readonly title: string;
  /** The view is shown; called each time. */
  show(): void;
}

const makers: Record<string, () => View> = { lab: () => new LabView(), chat: () => new ChatView() };
const views = new Map<string, View>();
const main = document.querySelector("main") as HTMLElement;

function route(): void {
  const name = location.hash.slice(1) in makers ? location.hash.slice(1) : "lab";
  const view = views.get(name) ?? makers[name]?.();
  if (view === undefined) return;
  views.set(name, view);
  if (!main.contains(view.element)) main.replaceChildren(view.element);
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${view.title} · Oncewire`;
  view.show();
}

const themes: Theme[] = ["auto", "light", "dark"];
const toggle = document.querySelector("#theme") as HTMLButtonElement;

function showTheme(): void {
  applyTheme();
  toggle.dataset.chosen = theme();
  setText(toggle.querySelector("span") as Element, `Theme: ${theme()}`);
}

onClick(toggle, () => {
  setTheme(themes[(themes.indexOf(theme()) + 1) % themes.length] ?? "auto");
  showTheme();
});

onClick(document.querySelector(".skip") as HTMLElement, () => main.focus());
if (!("locks" in navigator)) {
  main.before(h("p", { class: "notice" }, "This browser keeps no sessions across a reload: it has no Web Locks here."));
}
showTheme();
addEventListener("hashchange", route);
route();
