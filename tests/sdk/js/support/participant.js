/**
 * The official client under the control of another process: the same commands and answers as those of
 * `support/participant.py` of the Python tests. The argument is its URL.
 */
import readline from "node:readline";

import { WebPubSubClient } from "@azure/web-pubsub-client";

const client = new WebPubSubClient(process.argv[2]);

function say(line) {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

client.on("connected", () => say({ connected: true }));
client.on("group-message", ({ message: { group, dataType, data, sequenceId } }) => {
  const sent = data instanceof ArrayBuffer ? Buffer.from(data).toString("base64") : data;
  say({ message: { group, dataType, data: sent, sequenceId } });
});
await client.start();
for await (const line of readline.createInterface({ input: process.stdin })) {
  const { join, send, dataType, data } = JSON.parse(line);
  if (join) await client.joinGroup(join);
  else {
    const isBytes = dataType === "binary" || dataType === "protobuf";
    await client.sendToGroup(send, isBytes ? Uint8Array.from(Buffer.from(data, "base64")).buffer : data, dataType);
  }
  say({ done: true });
}
client.stop();
// It may still be trying to reach a gateway that has ended before it.
process.exit(0);
