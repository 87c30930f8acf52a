/**
 * A protobuf client for browsers whose session survives a reload of the page. See {@link ProtobufClient}.
 */
export { type ClientOptions, type GroupMessage, ProtobufClient, type Settled, type Started } from "./client.js";
export type { Payload, Request } from "./codec.js";
export { OutboxFullError, RefusedError, SessionLostError, StoppedError } from "./errors.js";
export { REQUEST_CHARACTERS_MAX, REQUESTS_MAX } from "./kept_session.js";
export type { AckOutcome, TraceEvent, TraceListener } from "./trace.js";
