/** Small help with elements. */

type Child = Node | string | false | undefined;

/** Makes an element with attributes; `true` sets an empty one, `false` and `undefined` none. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Record<string, string | number | boolean | undefined> = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== false && value !== undefined) element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child): child is Node | string => child !== false && child !== undefined));
  return element;
}

/** Changes an element's text only where it differs, so that nothing is announced or painted in vain. */
export function setText(element: Element, text: string | number): void {
  const string = String(text);
  if (element.textContent !== string) element.textContent = string;
}

export function onClick(element: HTMLElement, act: () => void): void {
  element.addEventListener("click", act);
}

/** Resolved value of a custom property, such as a colour for a canvas. */
export function cssValue(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function isMotionReduced(): boolean {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}
