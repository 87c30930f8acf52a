/**
 * Light, dark, or as the system has it. The document always carries the resolved theme, so that styles know it once.
 */
export type Theme = "auto" | "light" | "dark";

const KEY = "oncewire/theme";
const dark = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set<() => void>();

export function theme(): Theme {
  const kept = localStorage.getItem(KEY);
  return kept === "light" || kept === "dark" ? kept : "auto";
}

export function setTheme(chosen: Theme): void {
  if (chosen === "auto") localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, chosen);
  applyTheme();
}

export function applyTheme(): void {
  const chosen = theme();
  document.documentElement.dataset.theme = chosen === "auto" ? (dark.matches ? "dark" : "light") : chosen;
  for (const listener of listeners) listener();
}

/** Calls `listener` after each change of the resolved theme. */
export function onThemeChange(listener: () => void): void {
  listeners.add(listener);
}

dark.addEventListener("change", applyTheme);
