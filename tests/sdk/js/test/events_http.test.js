/**
 * The gateway as an HTTP client of the application: validation, attempts, redirects, a handler that is gone, a changed
 * configuration. The numbers in the names are the points of the event checklist that a test covers.
 */
import assert from "node:assert/strict";
import { writeFile } from "node:fs/promises";
import path from "node:path";
import { after, beforeEach, test } from "node:test";

import { Application, Gate, refuse, reply } from "../support/application.js";
import { Client, NO_RETRIES, clientUrl } from "../support/client.js";
import { Gateway } from "../support/gateway.js";
import { JsonClient, refusal } from "../support/json_client.js";
import { until } from "../support/waiting.js";

const AT_ONCE = "retry_after_seconds = [0, 0, 0]";

const application = await Application.start("first", "tried", "moved");
const other = await Application.start("moved");
const toml = (moved) => `
  [[hubs."first".event_handlers]]
  url_template = "${application.url}/{event}"
  system_events = ["connect"]
  ${application.toml("tried", AT_ONCE)}
  ${moved.toml("moved", AT_ONCE)}
`;
const gateway = await Gateway.start({ after }, { toml: toml(application) });
after(() => application.stop());
after(() => other.stop());

beforeEach(() => {
  application.forget();
  other.forget();
});

function connect(t, hub) {
  return Client.connect(t, gateway, { token: { hub }, ...NO_RETRIES });
}

function failed(error) {
  return error.errorDetail?.name === "InternalServerError";
}

test("a hundred first events wait for one validation (4, 13)", async (t) => {
  const url = await clientUrl(gateway.endpoint, { hub: "first" });
  const clients = Array.from({ length: 100 }, () => JsonClient.connect(t, url));
  await Promise.all(clients);
  assert.equal(application.preflights.length, 1);
  const [{ method, path: target, headers }] = application.preflights;
  assert.deepEqual([method, target], ["OPTIONS", "/eventhandler/validate"]);
  assert.deepEqual([headers["webhook-request-origin"], headers["ce-awpsversion"]], ["127.0.0.1", "1.0"]);
  for (const name of ["ce-signature", "cookie", "authorization"]) assert.equal(headers[name], undefined);
  const events = await application.seen("first", 100, "connect");
  assert.ok(events.every(({ path: each, wire }) => each === "/eventhandler/connect" && !wire.cookie), "its cookies are no connection's");
});

test("503, 503, then an answer: one event with one id, one reply, one ack (5)", async (t) => {
  const client = await connect(t, "tried");
  let attempts = 0;
  application.answer("tried", "user", () => (++attempts <= 2 ? refuse(503) : reply("done", "text")));
  assert.equal((await client.event("e", "x", { ackId: 1 })).isDuplicated, false);
  const calls = application.of("tried", "user");
  assert.equal(calls.length, 3);
  for (const header of ["ce-id", "x-ms-client-request-id"]) {
    assert.equal(new Set(calls.map(({ wire }) => wire[header])).size, 1, header);
  }
  assert.ok(calls.every(({ data }) => data === "x"));
  assert.deepEqual(await client.replies(1), ["done"]);
});

for (const [status, attempts] of [[408, 4], [500, 4], [400, 1], [404, 1], [429, 1]]) {
  test(`${status} is attempted ${attempts} times (5)`, async (t) => {
    const client = await connect(t, "tried");
    application.answer("tried", "user", refuse(status));
    await assert.rejects(client.event("e", "x"), failed);
    assert.equal(application.of("tried", "user").length, attempts);
  });
}

test("a redirect is a failure, and not followed", async (t) => {
  const client = await connect(t, "tried");
  for (const status of [301, 302, 303, 307, 308]) {
    application.answer("tried", "user", refuse(status, "", { headers: { location: `${other.url}/elsewhere` } }));
    await assert.rejects(client.event("e", "x"), failed);
  }
  assert.equal(application.of("tried", "user").length, 5);
  application.answer("tried", "connect", refuse(302, "", { headers: { location: `${other.url}/elsewhere` } }));
  assert.ok((await refusal(await clientUrl(gateway.endpoint, { hub: "tried" }))).status >= 300);
  assert.deepEqual([other.events, other.preflights], [[], []]);
});

test("a changed configuration holds for what comes, not for what is under way; an invalid one not at all (17)", async (t) => {
  const file = path.join(gateway.folder, "oncewire.toml");
  const gate = new Gate();
  application.answer("moved", "user", ({ data }) => (data === "under way" ? gate.pass().then(() => reply("old", "text")) : reply()));
  const early = await connect(t, "moved");
  const underWay = early.event("e", "under way");
  await application.seen("moved", 1, "user");
  await writeFile(file, toml(other));
  const client = await connect(t, "moved");
  await until("an event that goes elsewhere", async () => {
    await client.event("e", "later");
    return other.of("moved", "user").length > 0;
  });
  gate.open();
  await underWay;
  assert.deepEqual(await early.replies(1), ["old"]);
  assert.equal(early.connections.length, 1, "open connections stay");

  const count = gateway.lines.length;
  await writeFile(file, toml(application).replace("/{event}", "/{nonsense}"));
  await until("the refusal of the file", () => gateway.lines.slice(count).find((line) => /WARN.*(config|file)/i.test(line)));
  const before = application.of("moved").length;
  await client.event("e", "the last good one stays");
  assert.equal(other.of("moved", "user").at(-1).data, "the last good one stays");
  assert.equal(application.of("moved").length, before);
});

test("a handler that is gone fails its events alone, until it is back", async (t) => {
  const gone = await Application.start("gone");
  t.after(() => gone.stop());
  const file = path.join(gateway.folder, "oncewire.toml");
  await writeFile(file, `${toml(application)}
    [[hubs."gone".event_handlers]]
    url_template = "${gone.url}"
    user_event_pattern = "*"
    ${AT_ONCE}`);
  const client = await connect(t, "gone");
  await until("its configuration", () => client.event("e", "x").then(() => true, () => false));
  await gone.stop();
  await assert.rejects(client.event("e", "y", { ackId: 500 }), failed);
  const unconcerned = await connect(t, "tried");
  await unconcerned.event("e", "x");
  assert.equal(client.connections.length, 1);
});
