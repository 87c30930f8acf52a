//! One pass over a JSON object of the protocol, keeping the text of each property for later.
//!
//! This is where the rules that hold for all messages live: any order of properties, names compared with regard to
//! case, the last of two with one name wins, and unknown ones are passed over, though they must be JSON.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::wire::limits::JSON_DEPTH_MAX;
use crate::wire::{DecodeError, Metadata, MetadataBuilder, MetadataError};

macro_rules! properties {
    ($($property:ident = $name:literal,)*) => {
        /// A property that some message of the protocol has, in either direction.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Property {
            $($property,)*
        }

        impl Property {
            const COUNT: usize = [$(Self::$property),*].len();

            pub(super) const fn name(self) -> &'static str {
                match self {
                    $(Self::$property => $name,)*
                }
            }

            fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$property),)*
                    _ => None,
                }
            }
        }
    };
}

properties! {
    AckId = "ackId",
    ConnectionId = "connectionId",
    Data = "data",
    DataType = "dataType",
    Error = "error",
    Event = "event",
    From = "from",
    FromUserId = "fromUserId",
    Group = "group",
    InvocationId = "invocationId",
    Message = "message",
    Metadata = "metadata",
    Name = "name",
    NoEcho = "noEcho",
    ReconnectionToken = "reconnectionToken",
    SequenceId = "sequenceId",
    Stream = "stream",
    StreamId = "streamId",
    Success = "success",
    Target = "target",
    TtlSeconds = "ttlSeconds",
    Type = "type",
    UserId = "userId",
}

impl Property {
    pub(super) fn invalid(self) -> DecodeError {
        DecodeError::Property(self.name())
    }
}

/// Where the properties of one object stand in its text.
#[derive(Default)]
pub(super) struct Object<'a>([Option<&'a str>; Property::COUNT]);

impl<'a> Object<'a> {
    /// Takes a whole message; `None` when it is not one JSON object.
    pub(super) fn parse(message: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(message).ok()?;
        if nests_deeper(message, JSON_DEPTH_MAX) {
            return None;
        }
        serde_json::from_str(text).ok()
    }

    /// The JSON text of a property, `null` included.
    pub(super) fn text(&self, property: Property) -> Option<&'a str> {
        self.0[property as usize]
    }

    /// The JSON text of a property for which `null` means that it is absent.
    pub(super) fn present(&self, property: Property) -> Option<&'a str> {
        self.text(property).filter(|text| *text != "null")
    }

    pub(super) fn string(&self, property: Property) -> Result<Option<Cow<'a, str>>, DecodeError> {
        let Some(text) = self.present(property) else { return Ok(None) };
        unescape(text).map(Some).ok_or(property.invalid())
    }

    pub(super) fn required_string(&self, property: Property) -> Result<Cow<'a, str>, DecodeError> {
        self.string(property)?.ok_or(property.invalid())
    }

    /// An integer of 64 bits. In JSON text only digits can stand for one: no sign, fraction or exponent.
    pub(super) fn integer(&self, property: Property) -> Result<Option<u64>, DecodeError> {
        let Some(text) = self.present(property) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| property.invalid())
    }

    pub(super) fn required_integer(&self, property: Property) -> Result<u64, DecodeError> {
        self.integer(property)?.ok_or(property.invalid())
    }

    pub(super) fn boolean(&self, property: Property) -> Result<Option<bool>, DecodeError> {
        let Some(text) = self.present(property) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| property.invalid())
    }

    pub(super) fn object(&self, property: Property) -> Result<Option<Object<'a>>, DecodeError> {
        let Some(text) = self.present(property) else { return Ok(None) };
        serde_json::from_str(text).map(Some).map_err(|_| property.invalid())
    }

    pub(super) fn metadata(&self, property: Property) -> Result<Option<Metadata>, DecodeError> {
        let Some(text) = self.present(property) else { return Ok(None) };
        let CheckedMetadata(metadata) = serde_json::from_str(text).map_err(|_| property.invalid())?;
        Ok(Some(metadata?))
    }
}

/// The content of a JSON string whose text is known to be JSON; `None` when it is something else, or escapes half of
/// a surrogate pair.
pub(super) fn unescape(text: &str) -> Option<Cow<'_, str>> {
    let content = text.strip_prefix('"')?.strip_suffix('"')?;
    if content.contains('\\') {
        serde_json::from_str(text).ok().map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(content))
    }
}

/// The same with U+FFFD for each half of a pair that is alone. A string that was cut inside such a pair, as `slice` does in
/// JavaScript, is no reason to close its publisher's connection.
pub(super) fn unescape_lossy(text: &str) -> Option<Cow<'_, str>> {
    unescape(text).or_else(|| {
        let HalvesReplaced(text) = serde_json::from_str(text).ok()?;
        Some(Cow::Owned(text))
    })
}

/// A string in which U+FFFD has taken the place of each half of a surrogate pair that was alone.
struct HalvesReplaced(String);

impl<'de> Deserialize<'de> for HalvesReplaced {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HalvesVisitor;

        impl Visitor<'_> for HalvesVisitor {
            type Value = HalvesReplaced;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            /// The parser encodes a lone half as UTF-8 would if it were a character: three bytes.
            fn visit_bytes<E: Error>(self, mut bytes: &[u8]) -> Result<HalvesReplaced, E> {
                let mut text = String::with_capacity(bytes.len());
                loop {
                    match std::str::from_utf8(bytes) {
                        Ok(rest) => {
                            text.push_str(rest);
                            return Ok(HalvesReplaced(text));
                        }
                        Err(error) => {
                            let (valid, half) = bytes.split_at(error.valid_up_to());
                            text.push_str(std::str::from_utf8(valid).map_err(E::custom)?);
                            text.push(char::REPLACEMENT_CHARACTER);
                            bytes = half.get(HALF_BYTES..).unwrap_or_default();
                        }
                    }
                }
            }
        }

        deserializer.deserialize_bytes(HalvesVisitor)
    }
}

/// What a lone half of a surrogate pair takes where it is encoded like a character.
const HALF_BYTES: usize = 3;

/// Whether a client may publish this as JSON: `null` counts as no payload.
pub(in crate::wire) fn is_payload(text: &[u8]) -> bool {
    is_document(text) && text.trim_ascii() != b"null"
}

/// Whether this may be embedded as the payload of a message: JSON text, and not too deep.
pub(in crate::wire) fn is_document(text: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(text) else { return false };
    // The object of the message around it is one level.
    serde_json::from_str::<&RawValue>(text).is_ok() && !nests_deeper(text.as_bytes(), JSON_DEPTH_MAX - 1)
}

/// Whether arrays and objects stand in one another more than `depth_max` deep. Text that is not JSON gets any answer.
fn nests_deeper(text: &[u8], depth_max: usize) -> bool {
    let opens = |byte: u8| matches!(byte, b'[' | b'{');
    if text.iter().filter(|byte| opens(**byte)).count() <= depth_max {
        return false;
    }
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for &byte in text {
        if in_string {
            in_string = escaped || byte != b'"';
            escaped = byte == b'\\' && !escaped;
        } else if opens(byte) {
            depth += 1;
            if depth > depth_max {
                return true;
            }
        } else if matches!(byte, b']' | b'}') {
            depth = depth.saturating_sub(1);
        } else {
            in_string = byte == b'"';
        }
    }
    false
}

impl<'de> Deserialize<'de> for Object<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor;

        impl<'de> Visitor<'de> for ObjectVisitor {
            type Value = Object<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut object = Object::default();
                while let Some(Name(property)) = map.next_key()? {
                    match property {
                        Some(property) => {
                            object.0[property as usize] = Some(map.next_value::<&RawValue>()?.get())
                        }
                        None => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(object)
            }
        }

        deserializer.deserialize_map(ObjectVisitor)
    }
}

/// A property's name; `None` for one that the protocol does not have.
struct Name(Option<Property>);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameVisitor;

        impl Visitor<'_> for NameVisitor {
            type Value = Name;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a property's name")
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<Name, E> {
                Ok(Name(Property::from_name(name)))
            }
        }

        deserializer.deserialize_str(NameVisitor)
    }
}

/// An object of strings, and whether it may be metadata. Here no key may stand twice.
struct CheckedMetadata(Result<Metadata, MetadataError>);

impl<'de> Deserialize<'de> for CheckedMetadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

        struct MetadataVisitor;

        impl<'de> Visitor<'de> for MetadataVisitor {
            type Value = CheckedMetadata;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut metadata = MetadataBuilder::default();
                let mut checked = Ok(());
                while let Some((Text(key), Text(value))) = map.next_entry()? {
                    checked = checked.and_then(|()| metadata.insert(&key, &value));
                }
                Ok(CheckedMetadata(checked.map(|()| metadata.build())))
            }
        }

        deserializer.deserialize_map(MetadataVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_property_is_found_by_its_own_name() {
        for name in ["type", "group", "ackId", "metadata", "reconnectionToken"] {
            assert_eq!(Property::from_name(name).map(Property::name), Some(name));
        }
        assert_eq!(Property::from_name("Type"), None);
        assert_eq!(Property::from_name(""), None);
    }

    #[test]
    fn depth_counts_brackets_outside_strings_only() {
        let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        assert!(!nests_deeper(nested(128).as_bytes(), 128));
        assert!(nests_deeper(nested(129).as_bytes(), 128));
        let beside = format!("[{}]", "[{}],".repeat(500));
        assert!(!nests_deeper(beside.as_bytes(), 3));
        assert!(nests_deeper(beside.as_bytes(), 2));
        let in_string = format!(r#"["\"{}\\",[1]]"#, "[".repeat(500));
        assert!(!nests_deeper(in_string.as_bytes(), 2));
        assert!(nests_deeper(in_string.as_bytes(), 1));
    }

    #[test]
    fn payloads_are_json_that_fits_into_a_message() {
        for good in ["1", " [ null ] ", "\"\\ud800\"", "{\"a\":1,\"a\":2}"] {
            assert!(is_payload(good.as_bytes()), "{good}");
        }
        for bad in ["", "null", "\tnull\n", "nul", "1 2", "{a:1}", "[1,]", "\"\n\""] {
            assert!(!is_payload(bad.as_bytes()), "{bad}");
        }
        assert!(!is_payload(b"\"\xff\""));
        let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        assert!(is_payload(nested(JSON_DEPTH_MAX - 1).as_bytes()));
        assert!(!is_payload(nested(JSON_DEPTH_MAX).as_bytes()));
        assert!(!is_payload(nested(1_000_000).as_bytes()));
    }

    #[test]
    fn strings_are_borrowed_unless_they_hold_an_escape() {
        assert!(matches!(unescape(r#""plain é""#), Some(Cow::Borrowed("plain é"))));
        assert!(matches!(unescape(r#""a\u002Fb\n""#), Some(Cow::Owned(text)) if text == "a/b\n"));
        assert_eq!(unescape(r#""\ud83d\ude00""#).as_deref(), Some("\u{1F600}"));
        for not_a_string in [r#""\ud83d""#, "1", "null", "{}"] {
            assert_eq!(unescape(not_a_string), None, "{not_a_string}");
        }
    }

    #[test]
    fn text_cut_inside_an_emoji_closed_its_publishers_connection() {
        for (text, meant) in [
            (r#""\ud83d""#, "\u{FFFD}"),
            (r#""a\ude00é""#, "a\u{FFFD}é"),
            (r#""\ud83d\ud83d\ude00\ud83d""#, "\u{FFFD}\u{1F600}\u{FFFD}"),
            (r#""\ud83dx\n\ude00\ud83d""#, "\u{FFFD}x\n\u{FFFD}\u{FFFD}"),
            (r#""\ud83d\ude00""#, "\u{1F600}"),
            (r#""plain""#, "plain"),
        ] {
            assert_eq!(unescape_lossy(text).as_deref(), Some(meant), "{text}");
        }
        for not_a_string in ["1", "null", "{}", "[\"\\ud83d\"]"] {
            assert_eq!(unescape_lossy(not_a_string), None, "{not_a_string}");
        }
    }
}
