/**
 * What passes on a room's group, to which anybody may publish. Knows its form and its bounds, not what is done with it.
 */

/** A saying's ids in one receipt. */
export const RECEIPT_IDS_MAX = 100;

export const TEXT_CHARACTERS_MAX = 2_000;
export const NAME_CHARACTERS_MAX = 30;
const ID_CHARACTERS_MAX = 64;

export type Wire = { say: { id: string; from: string; text: string } } | { receipt: { by: string; ids: string[] } };

/** Reads what came on the group; what is not the chat's is none. */
export function asWire(content: unknown): Wire | undefined {
  const { say, receipt } = (content ?? {}) as { say?: unknown; receipt?: unknown };
  if (say !== undefined) {
    const { id, from, text } = (say ?? {}) as Record<string, unknown>;
    const isWhole = isText(id, ID_CHARACTERS_MAX) && isText(from, NAME_CHARACTERS_MAX) && isText(text, TEXT_CHARACTERS_MAX);
    return isWhole ? { say: { id, from, text } } : undefined;
  }
  const { by, ids } = (receipt ?? {}) as Record<string, unknown>;
  if (!isText(by, NAME_CHARACTERS_MAX) || !Array.isArray(ids) || ids.length > RECEIPT_IDS_MAX) return undefined;
  return ids.every((id) => isText(id, ID_CHARACTERS_MAX)) ? { receipt: { by, ids } } : undefined;
}

function isText(value: unknown, charactersMax: number): value is string {
  return typeof value === "string" && value.length <= charactersMax;
}
