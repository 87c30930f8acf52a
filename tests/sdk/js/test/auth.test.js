/**
 * Access tokens: who gets in, and that everybody else gets a 401 before the upgrade.
 */
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { test } from "node:test";

import { Client, clientUrl } from "../support/client.js";
import { ACCESS_KEY, Gateway, SECONDARY_ACCESS_KEY } from "../support/gateway.js";
import { ProxyProcess } from "../support/proxy.js";

// What the server SDK signs with; it lets a test choose every claim.
const jwt = createRequire(import.meta.resolve("@azure/web-pubsub"))("jsonwebtoken");

const now = () => Math.floor(Date.now() / 1000);

function urlWith(gateway, claims, key = ACCESS_KEY, options = {}) {
  const aud = `${gateway.endpoint}/client/hubs/chat`;
  const payload = { aud, exp: now() + 3600, ...claims };
  // The library refuses to sign an undefined claim.
  if (payload.exp === undefined) delete payload.exp;
  const token = jwt.sign(payload, key, { noTimestamp: true, ...options });
  return `${aud.replace("http", "ws")}?access_token=${token}`;
}

async function refused(t, gateway, url) {
  const client = Client.create(t, gateway, { url, autoReconnect: false });
  await assert.rejects(client.sdk.start(), /401/);
}

test("tokens of the server SDK are accepted, signed with either key", async (t) => {
  const gateway = await Gateway.start(t);
  await Client.connect(t, gateway);
  await Client.connect(t, gateway, { token: { key: SECONDARY_ACCESS_KEY } });
});

test("the audience is the host that the client dialled, or with a public URL that one (22 #20)", async (t) => {
  const proxies = ProxyProcess.start(t);
  const dialled = await Gateway.start(t);
  await Client.connect(t, dialled);
  await Client.connect(t, await proxies.open(dialled));
  await Client.connect(t, dialled, { url: urlWith(dialled, { aud: `${dialled.endpoint}/CLIENT/hubs/Chat` }) });
  const gateway = await Gateway.start(t, { toml: 'public_urls = ["https://chat.example.com/wps"]\n' });
  const proxy = await proxies.open(gateway);
  await refused(t, gateway, urlWith(gateway, { aud: `http://${gateway.address}/client/hubs/chat` }));
  // What a server SDK with the public URL in its connection string makes, by whatever way it comes in.
  for (const path of ["/client/hubs/chat", "/wps/client/hubs/chat"]) {
    const url = new URL(await clientUrl("https://chat.example.com/wps"));
    assert.equal(url.pathname, "/wps/client/hubs/chat");
    await Client.connect(t, proxy, { url: `ws://${proxy.address}${path}${url.search}` });
  }
});

test("bad tokens get a 401", async (t) => {
  const gateway = await Gateway.start(t);
  const base = `${gateway.endpoint.replace("http", "ws")}/client/hubs/chat`;
  const good = new URL(urlWith(gateway, {})).searchParams.get("access_token");
  const [header, payload, signature] = good.split(".");
  const unsigned = Buffer.from(JSON.stringify({ alg: "none", typ: "JWT" })).toString("base64url");
  const bad = {
    "no token": base,
    "an empty token": `${base}?access_token=`,
    "no JWT": `${base}?access_token=garbage`,
    "another key": urlWith(gateway, {}, "another-access-key-0123456789abcdefgh"),
    "a changed payload": `${base}?access_token=${header}.${Buffer.from("{}").toString("base64url")}.${signature}`,
    "the algorithm none": `${base}?access_token=${unsigned}.${payload}.`,
    "another algorithm": urlWith(gateway, {}, ACCESS_KEY, { algorithm: "HS512" }),
    "another hub": urlWith(gateway, { aud: `${gateway.endpoint}/client/hubs/other` }),
    "another host": urlWith(gateway, { aud: "http://example.com/client/hubs/chat" }),
    "no expiry": urlWith(gateway, { exp: undefined }),
  };
  for (const [what, url] of Object.entries(bad)) {
    await t.test(what, () => refused(t, gateway, url));
  }
});

test("expiry and not-before are kept with 5 minutes of skew (22 #20)", async (t) => {
  const gateway = await Gateway.start(t);
  await Client.connect(t, gateway, { url: urlWith(gateway, { exp: now() - 240 }) });
  await Client.connect(t, gateway, { url: urlWith(gateway, { nbf: now() + 240 }) });
  await refused(t, gateway, urlWith(gateway, { exp: now() - 360 }));
  await refused(t, gateway, urlWith(gateway, { nbf: now() + 360 }));
});

test("a client whose first token was refused gets in with the next one", async (t) => {
  const gateway = await Gateway.start(t);
  const client = await Client.connect(t, gateway, { reconnectRetryOptions: { retryDelayInMs: 1 } });
  // The service forgets the session when it restarts, and the first new tokens are bad.
  const urls = [urlWith(gateway, { exp: 1 }), urlWith(gateway, { exp: 1 })];
  client.sdk._credential = { getClientAccessUrl: async () => urls.shift() ?? urlWith(gateway, {}) };
  await gateway.stop();
  await gateway.launch();
  await client.connected(2);
  assert.equal(urls.length, 0);
});
