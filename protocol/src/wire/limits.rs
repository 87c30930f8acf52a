//! Limits of the wire, by name. Limits that an operator may change are configuration, not here.

/// A group's name, in UTF-16 code units.
pub const GROUP_NAME_UTF16_MAX: usize = 1024;
/// Names of the groups that one session is in, all together, in bytes: they are kept as long as the session lives.
pub const GROUP_NAMES_BYTES_MAX: usize = 1024 * 1024;
/// A user event's name, in characters (all ASCII).
pub const EVENT_NAME_CHARS_MAX: usize = 128;
/// A hub's name, in characters (all ASCII).
pub const HUB_NAME_CHARS_MAX: usize = 128;
/// A message's time-to-live, in seconds.
pub const TTL_SECONDS_MAX: u32 = 300;
/// One metadata key, in bytes.
pub const METADATA_KEY_BYTES_MAX: usize = 256;
/// One metadata value, in bytes.
pub const METADATA_VALUE_BYTES_MAX: usize = 1024;
/// The payload of one frame to a client, in bytes; a larger message takes several. Netty, which the Java client runs on,
/// closes the connection at a larger one.
pub const FRAME_PAYLOAD_BYTES_MAX: usize = 65_536;
/// All metadata keys and values of a message together, in bytes.
pub const METADATA_BYTES_MAX: usize = 8192;
/// A client's name for an invocation or a stream, in bytes: it is repeated in answers, which are bounded.
pub const CLIENT_OPERATION_ID_BYTES_MAX: usize = 1024;
/// A message from a client after reassembly, in bytes; the default of a setting.
pub const WEBSOCKET_MESSAGE_BYTES_MAX: usize = 1024 * 1024;
/// Nested arrays and objects in a JSON message, the message's own object included. The gateway itself would bear any
/// depth; the JSON parsers of subscribers, which get a payload as it was published, would not.
pub const JSON_DEPTH_MAX: usize = 128;
/// The reason in a close frame, in bytes (RFC 6455: 125 less the code).
pub const CLOSE_REASON_BYTES_MAX: usize = 123;
/// Literal permission rules of one session, per permission.
pub const PERMISSION_LITERALS_MAX: usize = 1000;
/// Wildcard patterns of one session, per permission.
pub const PERMISSION_PATTERNS_MAX: usize = 10;
/// A wildcard pattern, in characters.
pub const PATTERN_CHARS_MAX: usize = 1024;
/// Asterisks in a wildcard pattern, each one of a `**` counted.
pub const PATTERN_ASTERISKS_MAX: usize = 5;
