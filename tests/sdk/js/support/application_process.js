/**
 * An application: Express with the official middleware, in a process of its own. It tells each request in a line of JSON,
 * and answers an event as a later line says: `support/application.js` holds the other end.
 *
 * The arguments are its hubs. One that ends in `!` is answered at once, and only counted.
 */
import { AsyncLocalStorage } from "node:async_hooks";
import readline from "node:readline";

import { WebPubSubEventHandler } from "@azure/web-pubsub-express";
import express from "express";

const PATH = "/eventhandler";

/** Whether all events are answered 503. */
let isDown = false;

const waiting = new Map();
const counts = {};
let lastId = 0;

/** What the middleware does not show: the request and the response as they are on the wire. */
const exchange = new AsyncLocalStorage();

function say(line) {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

function encoded(data) {
  return Buffer.isBuffer(data) ? { base64: data.toString("base64") } : data;
}

/** Tells an event; answers it when told how. */
function tell(hub, kind, request, response) {
  const { context, ...rest } = request;
  const { http, answer } = exchange.getStore();
  if ("data" in rest) rest.data = encoded(rest.data);
  const id = ++lastId;
  if (response) {
    waiting.set(id, { kind, response, answer });
    answer.on("close", () => answer.writableFinished || say({ cancelled: id }));
  }
  say({ event: { id, hub, kind, context, ...rest, wire: http.headers, path: http.path } });
}

function reply({ id, fail, state, success = [], bytes, headers }) {
  const { kind, response, answer } = waiting.get(id);
  waiting.delete(id);
  for (const [name, value] of Object.entries(headers ?? {})) answer.setHeader(name, value);
  for (const [name, value] of Object.entries(state ?? {})) response.setState(name, value);
  if (fail) return response.fail(...fail);
  if (kind === "connect") return response.success(...success);
  const [data, dataType] = success;
  response.success(bytes ? "x".repeat(bytes) : data?.base64 ? Buffer.from(data.base64, "base64") : data, dataType);
}

function handler(hub) {
  return new WebPubSubEventHandler(hub, {
    path: PATH,
    handleConnect: (request, response) => tell(hub, "connect", request, response),
    onConnected: (request) => tell(hub, "connected", request),
    handleUserEvent: (request, response) => tell(hub, "user", request, response),
    onDisconnected: (request) => tell(hub, "disconnected", request),
  });
}

function countingHandler(hub) {
  const count = (kind) => ((counts[hub] ??= {})[kind] = (counts[hub][kind] ?? 0) + 1);
  const counted = (kind) => (_, response) => {
    count(kind);
    response?.success();
  };
  return new WebPubSubEventHandler(hub, {
    path: PATH,
    handleConnect: counted("connect"),
    onConnected: () => count("connected"),
    handleUserEvent: counted("user"),
    onDisconnected: () => count("disconnected"),
  });
}

const app = express();
app.disable("x-powered-by");
app.use((request, response, next) => {
  if (request.method === "OPTIONS") {
    const { method, path, headers } = request;
    say({ preflight: { method, path, headers } });
    // Not a cookie of any connection.
    response.setHeader("set-cookie", "validated=1");
  } else if (isDown) {
    say({ turnedAway: request.headers });
    return response.sendStatus(503);
  }
  exchange.run({ http: request, answer: response }, next);
});
for (const hub of process.argv.slice(2)) {
  const middleware = hub.endsWith("!") ? countingHandler(hub.slice(0, -1)) : handler(hub);
  app.use(middleware.getMiddleware());
}
const server = app.listen(0, "127.0.0.1", () => {
  say({ url: `http://127.0.0.1:${server.address().port}${PATH}` });
});

for await (const line of readline.createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  if (command.count) say({ counts });
  else if ("down" in command) isDown = command.down;
  else reply(command);
}
process.exit(0);
