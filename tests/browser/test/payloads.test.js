/**
 * Anybody may publish to a room's group: what is not the chat's is ignored.
 */
import assert from "node:assert/strict";
import { test } from "node:test";

import { bundle } from "../support/bundle.js";

const code = await bundle("chat/wire.ts");
const { asWire, NAME_CHARACTERS_MAX, RECEIPT_IDS_MAX, TEXT_CHARACTERS_MAX } = await import(
  `data:text/javascript;base64,${Buffer.from(code).toString("base64")}`
);

const say = { id: "1", from: "ann", text: "x".repeat(TEXT_CHARACTERS_MAX) };
const receipt = { by: "x".repeat(NAME_CHARACTERS_MAX), ids: Array(RECEIPT_IDS_MAX).fill("1") };

test("the chat's own messages are read, up to their bounds", () => {
  assert.deepEqual(asWire({ say, more: 1 }), { say });
  assert.deepEqual(asWire({ receipt }), { receipt });
});

test("anything else is none", () => {
  const foreign = [undefined, null, 1, "say", [], {}, { say: null }, { say: 1 }, { receipt: null }, { receipt: { by: "ann" } }];
  foreign.push({ say: { ...say, from: 1 } }, { say: { ...say, text: `${say.text}x` } });
  foreign.push({ receipt: { ...receipt, by: `${receipt.by}x` } }, { receipt: { ...receipt, ids: [...receipt.ids, "1"] } });
  foreign.push({ receipt: { ...receipt, ids: [1] } }, { receipt: { ...receipt, ids: "1" } });
  for (const content of foreign) assert.equal(asWire(content), undefined, JSON.stringify(content));
});
