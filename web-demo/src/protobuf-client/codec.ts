/**
 * Between the client's words and the frames of `protobuf.reliable.webpubsub.azure.v1`. Knows the schema, no session.
 */
import { create, fromBinary, type MessageInitShape, toBinary } from "@bufbuild/protobuf";

import {
  type DownstreamMessage,
  DownstreamMessageSchema,
  type MessageData,
  type MessageDataSchema,
  type UpstreamMessage,
  UpstreamMessageSchema,
} from "./generated/webpubsub_pb.js";

export const SUBPROTOCOL = "protobuf.reliable.webpubsub.azure.v1";

/** What a message carries. `any` is a serialised `google.protobuf.Any`. */
export type Payload =
  | { kind: "text"; text: string }
  | { kind: "json"; json: unknown }
  | { kind: "binary"; bytes: Uint8Array }
  | { kind: "any"; bytes: Uint8Array };

/** A request that wants an ack. */
export type Request =
  | { kind: "join"; group: string }
  | { kind: "leave"; group: string }
  | { kind: "send"; group: string; payload: Payload; noEcho: boolean };

/** What the gateway says, as far as the client understands it. */
export type Heard =
  | { kind: "connected"; connectionId: string; reconnectionToken: string }
  | { kind: "disconnected"; reason: string }
  | { kind: "ack"; ackId: number; success: boolean; error: { name: string; message: string } | undefined }
  | { kind: "message"; group: string; payload: Payload; sequenceId: number }
  | { kind: "other" };

/** A frame with a request in it. */
export function encodeRequest(ackId: number, request: Request): Uint8Array<ArrayBuffer> {
  const common = { group: request.group, ackId: BigInt(ackId) };
  switch (request.kind) {
    case "join":
      return encode({ message: { case: "joinGroup", value: common } });
    case "leave":
      return encode({ message: { case: "leaveGroup", value: common } });
    case "send": {
      const { payload, noEcho } = request;
      return encode({ message: { case: "sendToGroup", value: { ...common, data: encodePayload(payload), noEcho } } });
    }
  }
}

/** The request in a frame that {@link encodeRequest} made. */
export function decodeRequest(frame: Uint8Array): { ackId: number; request: Request } | undefined {
  const { message }: UpstreamMessage = fromBinary(UpstreamMessageSchema, frame);
  switch (message.case) {
    case "joinGroup":
    case "leaveGroup": {
      const { group, ackId } = message.value;
      return { ackId: Number(ackId), request: { kind: message.case === "joinGroup" ? "join" : "leave", group } };
    }
    case "sendToGroup": {
      const { group, ackId, data, noEcho = false } = message.value;
      const payload = decodePayload(data);
      return payload && { ackId: Number(ackId), request: { kind: "send", group, payload, noEcho } };
    }
    default:
      return undefined;
  }
}

export function encodeSequenceAck(sequenceId: number): Uint8Array<ArrayBuffer> {
  return encode({ message: { case: "sequenceAck", value: { sequenceId: BigInt(sequenceId) } } });
}

export function encodePing(): Uint8Array<ArrayBuffer> {
  return encode({ message: { case: "ping", value: {} } });
}

/** Reads one frame of the gateway; what is unknown or makes no sense to a client is `other`. */
export function decode(frame: Uint8Array): Heard {
  const { message }: DownstreamMessage = fromBinary(DownstreamMessageSchema, frame);
  switch (message.case) {
    case "system": {
      const system = message.value.message;
      if (system.case === "connected" && system.value.reconnectionToken !== undefined) {
        const { connectionId, reconnectionToken } = system.value;
        return { kind: "connected", connectionId, reconnectionToken };
      }
      if (system.case === "disconnected") return { kind: "disconnected", reason: system.value.reason };
      return { kind: "other" };
    }
    case "ack": {
      const { ackId, success, error } = message.value;
      return { kind: "ack", ackId: Number(ackId), success, error };
    }
    case "data": {
      const { group = "", data, sequenceId } = message.value;
      const payload = decodePayload(data);
      if (payload === undefined || sequenceId === undefined) return { kind: "other" };
      return { kind: "message", group, payload, sequenceId: Number(sequenceId) };
    }
    default:
      return { kind: "other" };
  }
}

function encode(message: MessageInitShape<typeof UpstreamMessageSchema>): Uint8Array<ArrayBuffer> {
  return toBinary(UpstreamMessageSchema, create(UpstreamMessageSchema, message));
}

function encodePayload(payload: Payload): MessageInitShape<typeof MessageDataSchema> {
  const utf8 = new TextEncoder();
  switch (payload.kind) {
    case "text":
      return { data: { case: "text", value: utf8.encode(payload.text) } };
    case "json":
      return { data: { case: "json", value: utf8.encode(JSON.stringify(payload.json)) } };
    case "binary":
      return { data: { case: "binary", value: payload.bytes } };
    case "any":
      return { data: { case: "any", value: payload.bytes } };
  }
}

function decodePayload(data: MessageData | undefined): Payload | undefined {
  const content = data?.data;
  const utf8 = new TextDecoder();
  switch (content?.case) {
    case "text":
      return { kind: "text", text: utf8.decode(content.value) };
    case "json":
      return { kind: "json", json: JSON.parse(utf8.decode(content.value)) };
    case "binary":
      return { kind: "binary", bytes: content.value };
    case "any":
      return { kind: "any", bytes: content.value };
    default:
      return undefined;
  }
}
