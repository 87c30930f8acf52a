/** As much of websocat as the README uses: lines of standard input go out as texts, what comes is printed. */
import readline from "node:readline";

import WebSocket from "ws";

const socket = new WebSocket(process.argv[2]);
socket.on("message", (data) => console.log(String(data)));
socket.on("close", () => process.exit(0));
socket.on("error", ({ message }) => {
  console.error(message);
  process.exit(1);
});
socket.on("open", () => readline.createInterface({ input: process.stdin }).on("line", (line) => socket.send(line)));
