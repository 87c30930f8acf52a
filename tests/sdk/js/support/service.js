/**
 * The official server SDK, as an application uses it.
 */
import { WebPubSubServiceClient } from "@azure/web-pubsub";

import { ACCESS_KEY } from "./gateway.js";

/** A service client for whoever listens at `via.endpoint`. Options go to the SDK. */
export function serviceOf(via, { hub = "chat", key = ACCESS_KEY, ...options } = {}) {
  const connectionString = `Endpoint=${via.endpoint};AccessKey=${key};Version=1.0;`;
  return new WebPubSubServiceClient(connectionString, hub, { allowInsecureConnection: true, ...options });
}
