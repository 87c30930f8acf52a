/** A random name of hexadecimal digits. Unlike UUIDs it is there on plain http too. */
export function randomId(bytes: number): string {
  const random = crypto.getRandomValues(new Uint8Array(bytes));
  return Array.from(random, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
