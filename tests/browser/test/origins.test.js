/**
 * Another site's page in the same browser can use none of the demo's routes.
 */
import assert from "node:assert/strict";
import http from "node:http";
import { test } from "node:test";

import { Browser } from "../support/browser.js";
import { DevGateway } from "../support/gateway.js";
import { LabPage } from "../support/lab_page.js";

test("a page of another origin gets no token and breaks nothing", async (t) => {
  const gateway = await DevGateway.start(t);
  const browser = await Browser.launch(gateway);
  const lab = await LabPage.open(browser, gateway.origin, "lab-origins");
  const connectionId = await lab.connectionId("S1");

  const server = http.createServer((_, response) => response.setHeader("content-type", "text/html").end("<h1>evil</h1>"));
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => server.close());
  // What the browser says of its tries is no error of ours.
  const foreign = await browser.context.newPage();
  await foreign.goto(`http://127.0.0.1:${server.address().port}/`);
  const ask = (path, body, options) =>
    foreign.evaluate(
      async ([url, text, more]) => {
        try {
          const response = await fetch(url, { method: "POST", body: text, ...more });
          return response.type === "opaque" ? "opaque" : response.status;
        } catch {
          return "refused";
        }
      },
      [`${gateway.origin}${path}`, JSON.stringify(body), options],
    );
  const asks = [
    ["/demo/negotiate", { user: "evil" }],
    ["/demo/faults/cut", { connectionId }],
    ["/demo/faults/stall", { connectionId, milliseconds: 1_000 }],
    ["/demo/faults/lose-next-ack", { connectionId }],
    ["/demo/restart", {}],
  ];
  for (const [path, body] of asks) {
    // Asked with a preflight, which is not answered; and without one, which tells the page nothing and does nothing.
    const json = { headers: { "content-type": "application/json" } };
    assert.equal(await ask(path, body, json), "refused", path);
    assert.equal(await ask(path, body, { mode: "no-cors" }), "opaque", path);
    // Even if a browser let it through.
    const headers = { "content-type": "application/json", origin: new URL(foreign.url()).origin };
    const options = { headers, data: body, ignoreHTTPSErrors: true };
    const response = await browser.context.request.post(`${gateway.origin}${path}`, options);
    assert.equal(response.status(), 403, path);
  }
  assert.deepEqual(gateway.events, [], "nothing happened at the gateway");
  assert.equal(await lab.counter("S1", "resumed"), 0);
  await lab.settle();
  await lab.assertSpotless();
});
