/** Connections to the gateway, over the official client and over the protobuf client. */
export type { Link, LinkKind, LinkListener, Published } from "./link.js";
export { OfficialLink } from "./official_link.js";
export { ProtobufLink, type ProtobufLinkListener } from "./protobuf_link.js";
