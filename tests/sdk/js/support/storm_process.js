/**
 * Many reliable sessions of one process, on the public WebSocket library alone. The arguments are a client URL and how many;
 * then each line is a command, answered by one line:
 *
 * * `lose`: loses all sockets without a word
 * * `recover`: takes all sessions up again; answers how many are alive
 * * `close`: closes all sockets, and so ends the sessions
 */
import readline from "node:readline";

import WebSocket from "ws";

const [url, count] = process.argv.slice(2);
const SUBPROTOCOL = "json.reliable.webpubsub.azure.v1";
/** Handshakes at a time. */
const WIDTH = 200;

async function inParallel(items, work) {
  const queue = items[Symbol.iterator]();
  await Promise.all(Array.from({ length: WIDTH }, async () => {
    for (const item of queue) await work(item);
  }));
}

/** Opens a socket; `isFirst(frame)` says which frame has to come before it counts as open. Returns that frame. */
function open(session, target, onOpen, isFirst) {
  return new Promise((resolve, reject) => {
    const socket = new WebSocket(target, SUBPROTOCOL, { perMessageDeflate: false });
    session.socket = socket;
    socket.on("open", () => onOpen(socket));
    socket.on("message", (data) => {
      const frame = JSON.parse(data);
      if (isFirst(frame)) resolve(frame);
    });
    socket.on("close", (code) => reject(new Error(`closed with ${code}`)));
    socket.on("error", reject);
  });
}

function begin(session) {
  return open(session, url, () => {}, ({ event }) => event === "connected").then((connected) => {
    Object.assign(session, connected);
  });
}

async function recover(session) {
  const target = new URL(url);
  target.searchParams.set("awps_connection_id", session.connectionId);
  target.searchParams.set("awps_reconnection_token", session.reconnectionToken);
  await open(session, target, (socket) => socket.send('{"type":"ping"}'), ({ type }) => type === "pong");
}

function ended({ socket }, end) {
  return new Promise((resolve) => {
    socket.once("close", resolve);
    end(socket);
  });
}

const COMMANDS = {
  lose: () => Promise.all(sessions.map((session) => ended(session, (socket) => socket.terminate()))),
  recover: () => inParallel(sessions, recover),
  close: () => Promise.all(sessions.map((session) => ended(session, (socket) => socket.close(1000)))),
};

const sessions = Array.from({ length: Number(count) }, () => ({}));
await inParallel(sessions, begin);
console.log(JSON.stringify({ open: sessions.length }));
for await (const command of readline.createInterface({ input: process.stdin })) {
  await COMMANDS[command]();
  console.log(JSON.stringify({ done: command, alive: sessions.filter(({ socket }) => socket.readyState === 1).length }));
}
process.exit(0);
