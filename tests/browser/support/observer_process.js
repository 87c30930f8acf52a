/**
 * The process behind `observer.js`: takes the page's origin and a group, writes what it is given as lines of JSON, and
 * ends when its input does.
 */
import { WebPubSubClient } from "@azure/web-pubsub-client";

const [origin, group] = process.argv.slice(2);

async function getClientAccessUrl() {
  const headers = { "content-type": "application/json", origin };
  const body = JSON.stringify({ user: "observer" });
  const response = await fetch(`${origin}/demo/negotiate`, { method: "POST", headers, body });
  return (await response.json()).url;
}

function tell(line) {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

let sessions = 0;
const client = new WebPubSubClient({ getClientAccessUrl });
client.on("connected", () => tell({ session: ++sessions }));
client.on("group-message", ({ message }) => tell({ message: message.data }));
await client.start();
await client.joinGroup(group);
tell({ joined: true });

process.stdin.resume();
process.stdin.on("end", () => process.exit());
