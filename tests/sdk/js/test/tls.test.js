/**
 * The official clients over wss, with a gateway that has made its own certificate.
 */
import assert from "node:assert/strict";
import { test } from "node:test";

import { Client } from "../support/client.js";
import { Gateway } from "../support/gateway.js";
import { RemoteClient } from "../support/remote_client.js";

const TEXTS = Array.from({ length: 50 }, (_, number) => `${number} ${"x".repeat(number * 100)}`);

test("clients of JavaScript and Python that trust the certificate hear one another over wss", async (t) => {
  const gateway = await Gateway.start(t, { secured: true });
  assert.match(gateway.endpoint, /^https:/);
  const clients = {
    javascript: await RemoteClient.javascript(t, gateway),
    sync: await RemoteClient.python(t, gateway, "sync"),
    async: await RemoteClient.python(t, gateway, "async"),
  };
  for (const client of Object.values(clients)) await client.join("room");
  for (const [name, client] of Object.entries(clients)) {
    for (const text of TEXTS) await client.send("room", "text", `${name} ${text}`);
  }
  const expected = Object.keys(clients).flatMap((name) => TEXTS.map((text) => `${name} ${text}`));
  for (const client of Object.values(clients)) {
    const heard = await client.received(expected.length);
    assert.deepEqual(heard.map(({ data }) => data), expected);
  }
});

test("sessions are resumed over wss when the gateway was killed and started again with the same certificate", async (t) => {
  const gateway = await Gateway.start(t, { secured: true });
  const clients = [
    await RemoteClient.javascript(t, gateway),
    await RemoteClient.python(t, gateway, "sync"),
    await RemoteClient.python(t, gateway, "async"),
  ];
  for (const client of clients) {
    await client.join("room");
    await client.send("room", "text", "before");
  }
  await clients[0].received(3);
  await gateway.kill();
  await gateway.launch();
  await clients[0].send("room", "text", "after");
  for (const [index, client] of clients.entries()) {
    // A client hears what came after it had joined.
    const heard = await client.received(4 - index);
    assert.deepEqual(heard.map(({ data }) => data), [...Array(3 - index).fill("before"), "after"]);
  }
});

test("a client that does not trust the certificate does not connect", async (t) => {
  const gateway = await Gateway.start(t, { secured: true });
  const client = Client.create(t, gateway);
  await assert.rejects(client.start(), /self[- ]signed certificate/);
  assert.equal(client.connections.length, 0);
});
