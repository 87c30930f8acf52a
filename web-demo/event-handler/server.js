/**
 * A chat server that never sees a socket: the gateway asks it who may come in, tells it who comes and goes, and hands it
 * what people say.
 */
import { AsyncLocalStorage } from "node:async_hooks";

import { WebPubSubServiceClient } from "@azure/web-pubsub";
import { WebPubSubEventHandler } from "@azure/web-pubsub-express";
import express from "express";

const HUB = "chat";
const PORT = Number(process.env.PORT ?? 3000);
const CONNECTION_STRING =
  process.env.ONCEWIRE_CONNECTION_STRING ??
  "Endpoint=http://127.0.0.1:7080;AccessKey=the-key-of-this-example-which-everybody-knows;Version=1.0;";

/** Of people and of rooms. */
const NAME = /^[a-z]{2,20}$/;
const RESERVED_NAMES = ["admin", "system"];
const TEXT_CHARACTERS_MAX = 500;

const gateway = new WebPubSubServiceClient(CONNECTION_STRING, HUB, { allowInsecureConnection: true });

/**
 * Names the event under way, the same when the gateway delivers it again because it never got, or never kept, the answer.
 * As the request id of what is published on its behalf it has the gateway publish that once.
 */
const eventId = new AsyncLocalStorage();

const handler = new WebPubSubEventHandler(HUB, {
  path: "/eventhandler",

  handleConnect({ context, queries }, response) {
    const name = context.userId ?? "";
    const room = queries.room?.at(-1) ?? "lobby";
    if (!NAME.test(name) || RESERVED_NAMES.includes(name) || !NAME.test(room)) {
      console.log(`${JSON.stringify(name)} may not come in`);
      return response.fail(403, "choose another name");
    }
    response.setState("room", room);
    response.setState("said", 0);
    // Everybody hears the room; to be heard one has to go through this server.
    response.success({ groups: [room], roles: [] });
  },

  onConnected({ context }) {
    console.log(`${context.userId} is in ${context.states.room}`);
  },

  async handleUserEvent({ context, dataType, data }, response) {
    if (dataType !== "text" || data.length > TEXT_CHARACTERS_MAX) {
      return response.fail(400, `a text of up to ${TEXT_CHARACTERS_MAX} characters, please`);
    }
    const { userId, states } = context;
    try {
      await gateway.group(states.room).sendToAll({ from: userId, text: data }, once());
    } catch (error) {
      console.error(`what ${userId} said was not published: ${error.message}`);
      return response.fail(503, "not now");
    }
    const said = states.said + 1;
    response.setState("said", said);
    response.success(JSON.stringify({ said }), "json");
  },

  onDisconnected({ context }) {
    console.log(`${context.userId} has left after saying ${context.states.said} things`);
  },
});

function once() {
  return { requestOptions: { customHeaders: { "x-ms-client-request-id": eventId.getStore() } } };
}

const app = express();
app.use((request, _response, next) => {
  const id = `${request.get("ce-connectionId")}/${request.get("ce-id")}`;
  eventId.run(id, next);
});
app.use(handler.getMiddleware());

/** Where a real application would look at a cookie: here one is whoever one says. */
app.get("/negotiate", async (request, response) => {
  const { name = "", room = "lobby" } = request.query;
  const { url } = await gateway.getClientAccessToken({ userId: `${name}` });
  const clientUrl = new URL(url);
  clientUrl.searchParams.set("room", `${room}`);
  response.json({ url: clientUrl });
});

const server = app.listen(PORT, "127.0.0.1", () => {
  console.log(`the chat server is ready on http://127.0.0.1:${server.address().port}`);
});
