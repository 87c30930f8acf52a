/**
 * Talks in the chat from a terminal: `node client.js NAME [ROOM]`, then a line for each thing to say.
 */
import readline from "node:readline";

import { WebPubSubClient } from "@azure/web-pubsub-client";

const [name, room = "lobby"] = process.argv.slice(2);
const SERVER = process.env.CHAT_SERVER ?? "http://127.0.0.1:3000";

const client = new WebPubSubClient({
  async getClientAccessUrl() {
    const answer = await fetch(`${SERVER}/negotiate?${new URLSearchParams({ name, room })}`);
    return (await answer.json()).url;
  },
});

client.on("connected", () => console.log(`you are in ${room}`));
client.on("group-message", ({ message }) => console.log(`${message.data.from}: ${message.data.text}`));
client.on("server-message", ({ message }) => console.log(`(that was number ${message.data.said})`));

try {
  await client.start();
} catch ({ message }) {
  console.log(`(not in: ${message})`);
  process.exit(1);
}
// With an id of our own the SDK's retries repeat it, and nothing is said twice.
let ackId = 0;
for await (const line of readline.createInterface({ input: process.stdin })) {
  await client
    .sendEvent("say", line, "text", { ackId: ++ackId })
    .catch(({ message }) => console.log(`(not said: ${message})`));
}
// The SDK's timers would keep the process for a while.
client.on("stopped", () => process.exit());
client.stop();
