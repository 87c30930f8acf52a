/**
 * All code of the README, cut out of the file and pasted into an empty folder, and what `dev` prints to try first.
 */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { copyFile, mkdir, readFile, rm } from "node:fs/promises";
import path from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";

import { WebPubSubServiceClient } from "@azure/web-pubsub";

import { Gateway } from "../support/gateway.js";
import { repositoryFile } from "../support/processes.js";
import { block, leftOut, Reader } from "../support/reader.js";
import { serviceOf } from "../support/service.js";
import { until, within } from "../support/waiting.js";

const LINES = Array.from({ length: 40 }, (_, number) => `line ${number}`);
const KEY_OF_DEV = { ONCEWIRE_ACCESS_KEY: "oncewire-development-key-for-loopback-only" };

/** Runs `dev`, and tells how to kill the process that serves. */
async function dev(reader, more = "") {
  const running = reader.run(block("sh", "oncewire dev").replace("oncewire dev", `oncewire dev${more}`));
  const kill = await running.printed(/^kill -9 \d+$/);
  const connectionString = (await running.printed(/^connection string: /)).replace("connection string: ", "");
  const clientUrl = (await running.printed(/^client URL: /)).replace("client URL: ", "");
  return { ...running, kill, connectionString, clientUrl };
}

/** Somebody who has installed and pasted the clients and servers of both languages. */
async function withPrograms(t) {
  const reader = await Reader.start(t);
  await reader.run(block("sh", "npm install")).done();
  await reader.run(block("sh", "pip install")).done();
  await reader.paste("client.mjs", block("js", "new WebPubSubClient"));
  await reader.paste("server.mjs", block("js", "new WebPubSubServiceClient"));
  await reader.paste("client.py", block("python", "WebPubSubClient("));
  await reader.paste("server.py", block("python", "WebPubSubServiceClient"));
  return reader;
}

/** A client that has published a first message, and whose gateway is gone. */
async function withClientAlone(t, command) {
  const reader = await withPrograms(t);
  const gateway = await dev(reader);
  const client = reader.run(command, { env: KEY_OF_DEV });
  client.child.stdin.write("first\n");
  await client.printed(/^(\d+ )?lobby first$/);
  gateway.stop();
  await within("its end", gateway.ended);
  return { reader, client };
}

const CLIENTS = {
  JavaScript: () => block("sh", "node client.mjs", "token --hub"),
  Python: () => block("sh", "python client.py", "token --hub"),
};

/** What a client has printed; that of Python in the order of the sequence ids that it prints first. */
function printed(language, { lines }) {
  if (language !== "Python") return lines;
  const parts = lines.map((line) => /^(\d+) (.*)$/.exec(line));
  return parts.sort(([, a], [, b]) => Number(a) - Number(b)).map(([, , text]) => text);
}

/** What it has said of itself: the SDK of Python says more on standard error. */
function said({ errors }) {
  return errors.filter((line) => /^(a new session|not sent)/.test(line));
}

for (const [language, command] of Object.entries(CLIENTS)) {
  test(`what is typed into the ${language} client comes back once, also while the gateway is killed`, async (t) => {
    const reader = await withPrograms(t);
    const gateway = await dev(reader);
    const client = reader.run(command(), { env: KEY_OF_DEV });
    client.child.stdin.write("first\n");
    await client.printed(/^(\d+ )?lobby first$/);
    client.child.stdin.write(LINES.map((line) => `${line}\n`).join(""));
    await client.printed(/^(\d+ )?lobby line 3$/);
    await reader.runPrinted(gateway.kill).done();
    await client.printed(/^(\d+ )?lobby line 39$/);
    for (const server of [block("sh", "node server.mjs"), block("sh", "python server.py", "Endpoint=http")]) {
      assert.match((await reader.run(server).done()).join(), /^ws:\/\/127\.0\.0\.1:\d+\/client\/hubs\/chat\?access_token=/);
    }
    await until("both servers' messages", () => client.lines.length >= LINES.length + 3);
    client.child.stdin.end();
    assert.equal(await within("the client's end", client.ended), 0, client.errors.join("\n"));
    const expected = ["first", ...LINES, "hello from the server", "hello from the server"].map((text) => `lobby ${text}`);
    assert.deepEqual(printed(language, client), expected);
    assert.deepEqual(said(client), [], "all of it was one session");
  });

  test(`the ${language} client says that its session is a new one, and goes on in it`, async (t) => {
    const { reader, client } = await withClientAlone(t, command());
    await rm(path.join(reader.folder, "data"), { recursive: true });
    await dev(reader);
    await until("the new session", () => said(client).length > 0);
    client.child.stdin.write("second\n");
    await client.printed(/^(\d+ )?lobby second$/);
    assert.deepEqual(said(client), ["a new session: what was published while there was none is missing"]);
  });

  test(`the ${language} client refuses a line that would end its session again and again, and sends the longest good one`, async (t) => {
    const reader = await withPrograms(t);
    await dev(reader);
    const client = reader.run(command(), { env: KEY_OF_DEV });
    const longest = "x".repeat(2 ** 20 - 2 ** 12 - 2);
    client.child.stdin.write(`${longest}y\n${longest}\nafter\n`);
    await client.printed(/^(\d+ )?lobby after$/);
    assert.deepEqual(said(client), ["not sent: 1044481 bytes of JSON, at most 1044480 can be"]);
    assert.deepEqual(printed(language, client), [`lobby ${longest}`, "lobby after"]);
  });

  test(`the ${language} client ends with its input, also while the gateway is away`, async (t) => {
    const { client } = await withClientAlone(t, command());
    client.child.stdin.end();
    assert.equal(await within("the client's end", client.ended), 0, client.errors.join("\n"));
  });
}

test("what dev prints to try first goes on when the gateway is killed, and nothing is missing or comes twice", async (t) => {
  const reader = await Reader.start(t);
  const gateway = await dev(reader);
  const [command] = /^node --experimental-websocket -e '[^']*'$/m.exec(gateway.lines.join("\n"));
  const program = reader.runPrinted(command);
  let [kill, newest] = [gateway.kill, 0];
  for (const killed of [1, 2, 3]) {
    await program.printed(new RegExp(`^${newest + 3} came back; missing: 0, twice: 0$`));
    await reader.runPrinted(kill).done();
    const again = await until("the next process", () => gateway.lines.filter((line) => line.startsWith("killed and"))[killed - 1]);
    kill = `kill -9 ${/\d+$/.exec(again)[0]}`;
    newest = program.lines.filter((line) => line.includes("came back")).length;
  }
  await program.printed(new RegExp(`^${newest + 3} came back; missing: 0, twice: 0$`));
  assert.ok(program.lines.filter((line) => line === "no socket: coming back").length >= 3);
  const numbers = program.lines.filter((line) => line.includes("came back"));
  assert.deepEqual(numbers, numbers.map((_, index) => `${index + 1} came back; missing: 0, twice: 0`));
});

test("what dev prints to try first comes back to a gateway that was away for long", async (t) => {
  const reader = await Reader.start(t);
  const gateway = await dev(reader);
  const [command] = /^node --experimental-websocket -e '[^']*'$/m.exec(gateway.lines.join("\n"));
  const program = reader.runPrinted(command);
  await program.printed(/^2 came back; missing: 0, twice: 0$/);
  gateway.stop();
  await within("its end", gateway.ended);
  const attempts = () => program.lines.filter((line) => line === "no socket: coming back").length;
  await until("attempts without a gateway", () => attempts() >= 4);
  await dev(reader);
  const newest = program.lines.filter((line) => line.includes("came back")).length;
  await program.printed(new RegExp(`^${newest + 5} came back; missing: 0, twice: 0$`));
});

test("the key that serve is given stays the same from start to start", async (t) => {
  const reader = await Reader.start(t);
  const random = 'console.log(require("node:crypto").randomBytes(48).toString("base64"))';
  await reader.substitute("openssl", `exec "${process.execPath}" -e '${random}'`);
  const keys = new Set();
  for (const start of [1, 2]) {
    const serving = reader.run(block("sh", "oncewire serve", "oncewire.key"));
    assert.match(await serving.printed(/^(connection string|ready): /), /https:\/\/chat\.example\.com/, `start ${start}`);
    keys.add(await readFile(path.join(reader.folder, "oncewire.key"), "utf8"));
    serving.stop();
    await within("its end", serving.ended);
  }
  assert.equal(keys.size, 1);
  const [url] = await reader.run(block("sh", "oncewire token --endpoint")).done();
  assert.match(url, /^wss:\/\/chat\.example\.com\/client\/hubs\/chat\?access_token=/);
});

test("a raw client publishes what it is given", async (t) => {
  const reader = await Reader.start(t);
  const gateway = await dev(reader);
  await reader.command("websocat", `exec "${process.execPath}" "${repositoryFile("tests/sdk/js/support/websocat.js")}" "$@"`);
  const client = reader.run(block("sh", "websocat"), { env: KEY_OF_DEV });
  client.child.stdin.write("hello\n");
  await client.printed(/^hello$/);
  const service = new WebPubSubServiceClient(gateway.connectionString, "chat", { allowInsecureConnection: true });
  await service.group("lobby").sendToAll("of the server", { contentType: "text/plain" });
  await client.printed(/^of the server$/);
});

test("a copy is made while the gateway runs", async (t) => {
  const reader = await Reader.start(t);
  const gateway = await dev(reader);
  const service = new WebPubSubServiceClient(gateway.connectionString, "chat", { allowInsecureConnection: true });
  await service.sendToAll("x", { contentType: "text/plain" });
  await mkdir(path.join(reader.home, "backups"));
  const told = await reader.run(block("sh", "oncewire log copy")).done();
  assert.match(told.at(-1), /copied to .*backups\/monday/);
});

test("clients and servers trust the certificate of dev --tls, and serve takes one of its own", async (t) => {
  const reader = await withPrograms(t);
  const gateway = await dev(reader, " --tls");
  for (const tool of ["keytool", "curl"]) await reader.substitute(tool, ":");
  assert.match(gateway.connectionString, /^Endpoint=https:/);
  const trust = block("sh", "NODE_EXTRA_CA_CERTS");
  const env = { CLIENT_URL: gateway.clientUrl, CONNECTION_STRING: gateway.connectionString };
  const all = reader.run(trust, { env });
  all.child.stdin.end();
  assert.match((await all.done()).join("\n"), /wss:/);
  const spoiled = reader.run(trust.replace("data/", "nowhere/"), { env });
  spoiled.child.stdin.end();
  assert.notEqual(await within("the end without trust", spoiled.ended), 0);
  gateway.stop();
  await within("its end", gateway.ended);

  const pair = path.join(reader.folder, "data/self-signed.pem");
  for (const file of ["cert.pem", "key.pem"]) await copyFile(pair, path.join(reader.folder, file));
  const serving = reader.run(block("sh", "--tls-cert"), {
    env: { ONCEWIRE_ACCESS_KEY: "a-key-of-the-readme-0123456789abcdef" },
  });
  assert.match(await serving.printed(/^(connection string|ready): /), /https:\/\/127\.0\.0\.1:/);
});

test("the file with settings is one, with a key put in", async (t) => {
  const reader = await Reader.start(t);
  const settings = block("toml", "access_key").replaceAll("…", "a-key-of-the-readme-0123456789abcdef");
  await reader.paste("oncewire.toml", settings);
  const serving = reader.run("oncewire serve --listen 127.0.0.1:0 --config oncewire.toml", { env: { HOOK_CODE: "x" } });
  assert.match(await serving.printed(/^(connection string|ready): /), /https:\/\/chat\.example\.com\/wps/);
});

test("a request with the two headers is executed once", async (t) => {
  const gateway = await Gateway.start(t);
  const lines = block("", "Repeatability-Request-ID").trim().split("\n");
  const customHeaders = Object.fromEntries(lines.map((line) => line.split(": ")));
  assert.equal(new Date(customHeaders["Repeatability-First-Sent"]).toUTCString(), customHeaders["Repeatability-First-Sent"]);
  const statuses = [];
  const onResponse = ({ status, headers }) => statuses.push(`${status} ${headers.get("repeatability-result")}`);
  const send = () =>
    serviceOf(gateway).sendToAll("x", { contentType: "text/plain", requestOptions: { customHeaders }, onResponse });
  // The README's time has passed.
  await assert.rejects(send(), { statusCode: 412 });
  customHeaders["Repeatability-First-Sent"] = new Date().toUTCString();
  await send();
  await send();
  assert.deepEqual(statuses.slice(-2), ["202 accepted", "202 accepted"]);
});

test("the commands of the repository are there", async () => {
  const { stdout } = await promisify(execFile)(repositoryFile(block("sh", "tests/run").trim()), ["--list"]);
  assert.match(stdout, /^sdk-js$/m);
  // events_example.test.js runs what these two run, on ports that are free.
  assert.equal(block("sh", "event-handler/oncewire.toml"), "oncewire serve --config web-demo/event-handler/oncewire.toml\n");
  assert.equal(block("sh", "npm ci"), "cd web-demo/event-handler && npm ci && npm start\n");
  const example = JSON.parse(await readFile(repositoryFile("web-demo/event-handler/package.json"), "utf8"));
  assert.deepEqual(example.scripts, { start: "node server.js", chat: "node client.js" });
});

test("no code of the README is left out", () => {
  assert.deepEqual(leftOut(), []);
});
