/**
 * Nothing that is secret gets into the gateway's output, at the most talkative level: no keys, tokens or payloads.
 */
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { test } from "node:test";

import { Application, accept, refuse, reply } from "../support/application.js";
import { Client, NO_RETRIES, clientUrl } from "../support/client.js";
import { ACCESS_KEY, Gateway, SECONDARY_ACCESS_KEY } from "../support/gateway.js";
import { JsonClient, refusal } from "../support/json_client.js";
import { ProxyProcess } from "../support/proxy.js";
import { until } from "../support/waiting.js";

const WebSocket = createRequire(import.meta.resolve("@azure/web-pubsub-client"))("ws");

test("a full run at TRACE holds no key, token or payload", async (t) => {
  const gateway = await Gateway.start(t, {
    env: { ONCEWIRE_LOG: "trace" },
    toml: "session_retention_seconds = 1\noutbox_messages_max = 100\n",
  });
  const lines = [];
  gateway.onOutput = (line) => lines.push(line);
  const proxy = await ProxyProcess.start(t).open(gateway);
  const secrets = new Set([ACCESS_KEY, SECONDARY_ACCESS_KEY]);

  // Clients of both kinds talk, are cut, and recover.
  const payload = "payload-that-must-stay-private";
  secrets.add(payload);
  const receiver = await Client.connect(t, gateway, { token: { groups: ["g"] } });
  const url = await clientUrl(proxy.endpoint, { userId: "ada" });
  secrets.add(new URL(url).searchParams.get("access_token"));
  const sender = await Client.connect(t, proxy, { url, ...NO_RETRIES });
  secrets.add(sender.sdk._reconnectionToken);
  await sender.sendUntilDone("g", `${payload} 1`, 100);
  await proxy.strike("cut_rst");
  await sender.sendUntilDone("g", `${payload} 2`, 101);
  await receiver.received("g", 2);

  // Requests that are refused or not served.
  await sender.persist(() => sender.sdk.sendToGroup("g", { [payload]: payload }, "json", { ackId: 102 }));
  await assert.rejects(sender.send("g", `${payload} other`, { ackId: 100 }), /Failed to send/);
  await assert.rejects(sender.sdk.sendEvent("nobody-takes-this", payload, "text"));
  const refused = Client.create(t, proxy, { url: `${url}x`, autoReconnect: false });
  await assert.rejects(refused.sdk.start());

  // A message that does not follow the protocol, and a recovery with a made-up token.
  const subprotocol = "json.reliable.webpubsub.azure.v1";
  const broken = new WebSocket(url, subprotocol);
  let code;
  broken.on("message", () => broken.send(`{"type":"${payload}","data":"${payload}"`));
  broken.on("close", (closed) => (code = closed));
  await until("the close of a broken client", () => code);
  assert.equal(code, 1007);
  const recovery = new URL(url);
  recovery.searchParams.set("awps_connection_id", sender.connectionId);
  recovery.searchParams.set("awps_reconnection_token", "made-up-reconnection-token");
  secrets.add("made-up-reconnection-token");
  code = undefined;
  new WebSocket(recovery, subprotocol).on("close", (closed) => (code = closed));
  await until("the refusal", () => code);
  assert.equal(code, 1008);

  // Sessions that overflow and expire.
  await Client.connect(t, proxy, { token: { groups: ["away"] } });
  await proxy.refuse();
  await proxy.strike("cut_rst");
  for (let number = 0; number < 101; number++) await receiver.send("away", `${payload} ${number}`);
  await gateway.stop();

  assertNoneIn(lines, secrets);
});

test("nor has one with event handlers: nothing of their URLs and tokens, of requests and of answers", async (t) => {
  const application = await Application.start("chat");
  const secret = (what) => `${what}-that-must-stay-private`;
  const table = application.toml("chat", 'bearer_token = "{env:HOOK_TOKEN}"\nretry_after_seconds = [0]');
  const gateway = await Gateway.start(t, {
    env: { ONCEWIRE_LOG: "trace", HOOK_CODE: secret("code"), HOOK_TOKEN: secret("token") },
    toml: table.replace(application.url, `${application.url}?code={env:HOOK_CODE}`),
  });
  t.after(() => application.stop());
  const lines = [];
  gateway.onOutput = (line) => lines.push(line);

  application.answer("chat", "connect", accept(
    { userId: "ann", roles: [] },
    { state: { [secret("note")]: 1 }, headers: { "set-cookie": `a=${secret("cookie")}` } },
  ));
  application.answer("chat", "user", reply(secret("reply"), "text", { headers: { "x-webpubsub-metadata-m": secret("metadata") } }));
  const url = new URL(await clientUrl(gateway.endpoint, {}));
  const token = url.searchParams.get("access_token");
  url.searchParams.set("more", secret("query"));
  const client = await JsonClient.connect(t, url, undefined, { headers: { "X-Custom": secret("header") } });
  const { reconnectionToken } = await client.connected();
  const metadata = { m: secret("metadata") };
  const event = { type: "event", event: "e", dataType: "text", data: secret("payload"), metadata };
  client.send({ ...event, ackId: 1 });
  await client.ack(1);
  const [connect] = application.of("chat", "connect");
  assert.equal(connect.wire.authorization, `Bearer ${secret("token")}`);
  const noted = application.of("chat", "user")[0].wire["ce-connectionstate"];

  application.answer("chat", "user", refuse(500, secret("reason")));
  client.send({ ...event, ackId: 2 });
  await client.ack(2);
  application.answer("chat", "user", reply(secret("{reply"), "json"));
  client.send({ ...event, ackId: 3 });
  await client.ack(3);
  application.answer("chat", "connect", accept({ groups: [secret("group"), " "] }));
  assert.equal((await refusal(url)).status, 500);
  await client.close();
  await application.seen("chat", 1, "disconnected");
  await gateway.stop();

  assertNoneIn(lines, [ACCESS_KEY, SECONDARY_ACCESS_KEY, token, reconnectionToken, noted, connect.wire["ce-signature"], "that-must-stay-private"]);
});

function assertNoneIn(lines, secrets) {
  assert.ok(lines.some((line) => /\bTRACE\b/.test(line)), "the run was not at TRACE");
  for (const line of lines) {
    for (const secret of secrets) assert.ok(!line.includes(secret), `a secret in the output: ${line}`);
  }
}
