/**
 * The protobuf client's own promises: its limits, on both sides of them, and how it tells that a session ended.
 */
import assert from "node:assert/strict";
import { test } from "node:test";

import { ProxyProcess } from "../../sdk/js/support/proxy.js";
import { Browser } from "../support/browser.js";
import { openClientPage } from "../support/client_page.js";
import { DevGateway } from "../support/gateway.js";

/** A page behind a proxy, with a started client in it. */
async function scene(t, options) {
  const gateway = await DevGateway.start(t, options);
  const proxy = await ProxyProcess.start(t).open(gateway);
  const browser = await Browser.launch(gateway, { breaksConnections: true });
  const origin = `https://${proxy.address}`;
  const page = await openClientPage(browser, origin);
  await page.evaluate(async () => {
    globalThis.lost = 0;
    globalThis.heard = [];
    globalThis.client = openClient("tester", {
      onMessage: ({ payload }) => heard.push(payload.text),
      onSessionLost: () => lost++,
    });
    await client.start();
    await client.join("room");
  });
  const unplug = async () => {
    await proxy.refuse();
    await proxy.strike("cut_rst");
  };
  return { gateway, browser, origin, page, unplug, plug: () => proxy.refuse(0) };
}

test("as many requests wait as the client keeps, not one more", async (t) => {
  const { page, unplug, plug } = await scene(t);
  await unplug();
  const refused = await page.evaluate(async () => {
    globalThis.waiting = Array.from({ length: REQUESTS_MAX }, (_, number) => client.send("room", text(`${number}`)));
    return failureOf(client.send("room", text("one more")));
  });
  assert.equal(refused, "OutboxFullError");
  await plug();
  const [heard, max] = await page.evaluate(async () => {
    await Promise.all(waiting);
    await client.send("room", text("after"));
    return [heard, REQUESTS_MAX];
  });
  assert.deepEqual(heard, [...Array.from({ length: max }, (_, number) => `${number}`), "after"]);
});

test("the characters of what waits are bounded", async (t) => {
  const { page, unplug, plug } = await scene(t);
  await unplug();
  const [failures, kept, max] = await page.evaluate(async () => {
    const kept = () =>
      Object.keys(sessionStorage)
        .filter((key) => key.includes("/request/"))
        .reduce((sum, key) => sum + sessionStorage.getItem(key).length, 0);
    globalThis.waiting = [];
    const large = "x".repeat(500_000);
    while (REQUEST_CHARACTERS_MAX - kept() > 700_000) waiting.push(client.send("room", text(large)));
    const failures = [];
    // The first that fits, coming from those that are too long, fills it to the last character.
    for (let length = Math.floor(((REQUEST_CHARACTERS_MAX - kept()) / 4) * 3); ; length--) {
      const before = kept();
      const sent = client.send("room", text("x".repeat(length)));
      if (kept() > before) {
        waiting.push(sent);
        return [failures, kept(), REQUEST_CHARACTERS_MAX];
      }
      failures.push(await failureOf(sent));
    }
  });
  assert.ok(failures.length > 0);
  assert.deepEqual(new Set(failures), new Set(["OutboxFullError"]));
  assert.equal(kept, max);
  await plug();
  await page.evaluate(() => Promise.all(waiting));
});

test("a storage that others have filled takes no request, and is usable when there is room again", async (t) => {
  const { page } = await scene(t);
  const [refused, heard] = await page.evaluate(async () => {
    let size = 1 << 22;
    for (let part = 0; size >= 1; part++) {
      try {
        sessionStorage.setItem(`other-${part}`, "x".repeat(size));
      } catch {
        size >>= 1;
      }
    }
    const refused = await failureOf(client.send("room", text("no room")));
    for (const key of Object.keys(sessionStorage)) if (key.startsWith("other-")) sessionStorage.removeItem(key);
    await client.send("room", text("room again"));
    return [refused, heard];
  });
  assert.equal(refused, "OutboxFullError");
  assert.deepEqual(heard, ["room again"]);
});

test("a session that the gateway refuses is replaced, and what waited is said to be uncertain", async (t) => {
  // The certificate is kept, and sessions are not.
  const { gateway, page, unplug, plug } = await scene(t, { durability: "memory" });
  const before = await page.evaluate(() => client.connectionId);
  await unplug();
  await page.evaluate(() => {
    globalThis.uncertain = failureOf(client.send("room", text("waits")));
  });
  await gateway.restart();
  await plug();
  assert.equal(await page.evaluate(() => uncertain), "SessionLostError");
  await page.waitForFunction(() => lost === 1);
  const [after, heard] = await page.evaluate(async () => {
    await client.send("room", text("in the new session"));
    return [client.connectionId, heard];
  });
  assert.notEqual(after, before);
  assert.deepEqual(heard, ["in the new session"], "the group was joined again");
});

test("a page that was loaded again is told what waits, and settles it", async (t) => {
  const { browser, origin, page, unplug, plug } = await scene(t);
  const before = await page.evaluate(() => client.connectionId);
  await unplug();
  await page.evaluate(() => {
    for (const content of ["one", "two"]) client.send("room", text(content));
  });
  const stored = await page.evaluate(() => JSON.stringify({ ...sessionStorage }));
  await page.close();
  await plug();
  const next = await openClientPage(browser, origin);
  const [resumed, pending, duplicates, connectionId] = await next.evaluate(async (items) => {
    for (const [key, value] of Object.entries(JSON.parse(items))) sessionStorage.setItem(key, value);
    globalThis.heard = [];
    globalThis.client = openClient("tester", { onMessage: ({ payload }) => heard.push(payload.text) });
    const { isResumed, pending } = await client.start();
    const settled = await Promise.all(pending.map(({ settled }) => settled));
    const contents = pending.map(({ request }) => request.payload.text);
    return [isResumed, contents, settled.map(({ isDuplicate }) => isDuplicate), client.connectionId];
  }, stored);
  assert.ok(resumed);
  assert.equal(connectionId, before);
  assert.deepEqual(pending, ["one", "two"]);
  assert.deepEqual(duplicates, [false, false]);
  await next.waitForFunction(() => heard.length >= 2);
  assert.deepEqual(await next.evaluate(() => heard), ["one", "two"]);
});

test("without locks nobody can tell who owns a session, so none is taken up", async (t) => {
  const { page } = await scene(t);
  const [before, resumed, after] = await page.evaluate(async () => {
    const other = openClient("tester", { locks: undefined });
    const { isResumed } = await other.start();
    return [client.connectionId, isResumed, other.connectionId];
  });
  assert.equal(resumed, false);
  assert.notEqual(after, before);
});

test("what a stopped client had waiting fails, and its session is over", async (t) => {
  const { page, unplug, plug } = await scene(t);
  await unplug();
  const [before, failure, kept] = await page.evaluate(async () => {
    const before = client.connectionId;
    const failure = failureOf(client.send("room", text("never")));
    client.stop();
    return [before, await failure, Object.keys(sessionStorage)];
  });
  assert.equal(failure, "StoppedError");
  assert.deepEqual(kept, []);
  await plug();
  const [resumed, after] = await page.evaluate(async () => {
    const next = openClient("tester");
    const { isResumed } = await next.start();
    return [isResumed, next.connectionId];
  });
  assert.equal(resumed, false);
  assert.notEqual(after, before);
});

test("a group that was left sends nothing more", async (t) => {
  const { page } = await scene(t);
  const heard = await page.evaluate(async () => {
    await client.send("room", text("in"));
    await client.leave("room");
    await client.send("room", text("out"));
    await client.join("room");
    await client.send("room", text("in again"));
    return heard;
  });
  assert.deepEqual(heard, ["in", "in again"]);
});
