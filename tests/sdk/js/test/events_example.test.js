/**
 * The example application of the README, as it is, behind a gateway with the configuration that stands beside it.
 */
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import net from "node:net";
import { test } from "node:test";

import { Gateway } from "../support/gateway.js";
import { repositoryFile, startCommand } from "../support/processes.js";
import { until, within } from "../support/waiting.js";

const folder = "web-demo/event-handler";

/** A port that is free now: gateway and application have to know each other's before they start. */
async function freePort() {
  const server = net.createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => server.on("listening", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** Runs a script of the example; `lines` has what it prints. */
function run(t, script, args, env) {
  const lines = [];
  const started = startCommand(process.execPath, [repositoryFile(`${folder}/${script}`), ...args], {
    env,
    onLine: (_, line) => lines.push(line),
  });
  t.after(() => started.child.kill());
  const printed = (text) => until(`${script} ${args} to print "${text}", not ${lines}`, () => lines.includes(text));
  return { ...started, lines, printed };
}

test("two people chat, also across a crash, and one who may not come in does not", async (t) => {
  const port = await freePort();
  const configured = await readFile(repositoryFile(`${folder}/oncewire.toml`), "utf8");
  assert.match(configured, /127\.0\.0\.1:3000\//);
  const gateway = await Gateway.start(t, { toml: configured.replace(":3000/", `:${port}/`), disk: true });
  const server = run(t, "server.js", [], { PORT: `${port}`, ONCEWIRE_CONNECTION_STRING: gateway.connectionString });
  const CHAT_SERVER = `http://127.0.0.1:${port}`;
  await server.printed(`the chat server is ready on ${CHAT_SERVER}`);

  const ann = run(t, "client.js", ["ann"], { CHAT_SERVER });
  const bob = run(t, "client.js", ["bob"], { CHAT_SERVER });
  const carol = run(t, "client.js", ["carol", "attic"], { CHAT_SERVER });
  await Promise.all([ann.printed("you are in lobby"), bob.printed("you are in lobby"), carol.printed("you are in attic")]);
  await server.printed("carol is in attic");

  ann.child.stdin.write("hello\nstill there?\n");
  await bob.printed("ann: hello");
  await ann.printed("(that was number 2)");
  bob.child.stdin.write("yes\n");
  await ann.printed("bob: yes");
  await bob.printed("(that was number 1)");
  assert.deepEqual(ann.lines, ["you are in lobby", "ann: hello", "(that was number 1)", "ann: still there?", "(that was number 2)", "bob: yes"]);
  assert.deepEqual(carol.lines, ["you are in attic"]);

  // The server has published it, and may not have got to answer when the gateway is gone.
  ann.child.stdin.write("boom\n");
  await bob.printed("ann: boom");
  await gateway.kill();
  await gateway.launch();
  await ann.printed("(that was number 3)");
  bob.child.stdin.write("all quiet\n");
  await ann.printed("bob: all quiet");
  for (const { lines } of [ann, bob]) assert.equal(lines.filter((line) => line === "ann: boom").length, 1);

  ann.child.stdin.end();
  assert.equal((await within("ann's end", ann.ended)).code, 0);
  const admin = run(t, "client.js", ["admin"], { CHAT_SERVER });
  assert.equal((await within("the admin's end", admin.ended)).code, 1);
  assert.match(admin.lines.join(), /not in: .*403/);
  assert.ok(server.lines.includes('"admin" may not come in'));
});
