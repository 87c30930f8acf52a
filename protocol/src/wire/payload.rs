//! What a message carries, in one form for all encodings.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use bytes::Bytes;

use super::allocated;
use super::limits::{METADATA_BYTES_MAX, METADATA_KEY_BYTES_MAX, METADATA_VALUE_BYTES_MAX};

/// How a payload is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PayloadKind {
    /// UTF-8 text.
    Text,
    /// JSON text, kept verbatim from the publisher.
    Json,
    /// Any bytes.
    Binary,
    /// A serialised `google.protobuf.Any`; from a JSON client it is taken at its word.
    Any,
}

/// A kind and its bytes. `Debug` shows the size, never the content.
#[derive(Clone, PartialEq, Eq)]
pub struct Payload {
    /// How to read the bytes.
    pub kind: PayloadKind,
    /// The content: valid UTF-8 for `Text`, valid JSON text for `Json`, which only the application may give as `null`.
    pub bytes: Bytes,
}

impl Payload {
    /// JSON of the application, kept letter by letter; none if it is no JSON or nested too deep for a message.
    pub fn json(text: Bytes) -> Option<Self> {
        super::json::is_document(&text).then_some(Self { kind: PayloadKind::Json, bytes: text })
    }

    /// Text of the application; none if it is not UTF-8.
    pub fn text(text: Bytes) -> Option<Self> {
        std::str::from_utf8(&text).is_ok().then_some(Self { kind: PayloadKind::Text, bytes: text })
    }

    /// What a message carries whose publisher gave it metadata alone.
    pub(super) const fn empty_text() -> Self {
        Self { kind: PayloadKind::Text, bytes: Bytes::new() }
    }
}

impl std::fmt::Debug for Payload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Payload({:?}, {} bytes)", self.kind, self.bytes.len())
    }
}

/// Payloads up to this size are copied out of their frame.
const COPY_BYTES_MAX: usize = 4096;

/// Whether a payload should share its frame's memory instead of being copied: not if it is small, and not if the frame
/// holds more of something else. What waits in an outbox must not keep much more than itself alive.
pub(super) fn shares_frame(payload_bytes: usize, frame_bytes: usize) -> bool {
    payload_bytes > COPY_BYTES_MAX && payload_bytes >= frame_bytes / 2
}

/// Why metadata was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    /// A key that is empty, too long or no HTTP token.
    #[error("a metadata key is invalid")]
    Key,
    /// A value that is too long or not ASCII.
    #[error("a metadata value is invalid")]
    Value,
    /// The same key twice.
    #[error("a metadata key stands twice")]
    Repeated,
    /// All keys and values together are over the limit.
    #[error("the metadata is too large")]
    TooLarge,
}

/// A flat map of strings that travels beside a payload; keys are case-sensitive. It is kept sorted by key, so that a
/// resend whose client lists the same entries in another order is still the same request.
///
/// All copies share one block: a map of strings would take some 70 bytes for a key of two letters.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Metadata(Option<Arc<Block>>);

/// Keys and values one after the other, and where each of them ends.
#[derive(PartialEq, Eq)]
struct Block {
    text: Box<str>,
    ends: Box<[u16]>,
}

const _: () = assert!(METADATA_BYTES_MAX <= u16::MAX as usize, "an end has room in a u16");

impl Metadata {
    /// Checks entries and takes them.
    pub fn new<K: AsRef<str>, V: AsRef<str>>(
        entries: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, MetadataError> {
        let mut metadata = MetadataBuilder::default();
        entries.into_iter().try_for_each(|(key, value)| metadata.insert(key.as_ref(), value.as_ref()))?;
        Ok(metadata.build())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |block| block.ends.len() / 2)
    }

    /// Keys and values, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().flat_map(|block| block.entries())
    }

    /// Bytes of all keys and values.
    pub fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |block| block.text.len())
    }

    /// What all copies together take in memory, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let block_bytes = |block: &Arc<Block>| {
            allocated(size_of::<Block>())
                + allocated(block.text.len())
                + allocated(size_of_val::<[u16]>(&block.ends))
        };
        self.0.as_ref().map_or(0, block_bytes)
    }
}

impl Block {
    fn entries(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut begin = 0;
        let mut next = move |end: u16| {
            let part = self.text.get(begin..usize::from(end)).unwrap_or_default();
            begin = usize::from(end);
            part
        };
        self.ends.chunks_exact(2).map(move |ends| (next(ends[0]), next(ends[1])))
    }
}

/// Gathers entries for [`Metadata`], which come in any order.
#[derive(Default)]
pub struct MetadataBuilder {
    entries: BTreeMap<Box<str>, Box<str>>,
    bytes: usize,
}

impl MetadataBuilder {
    /// Checks and adds one entry.
    pub fn insert(&mut self, key: &str, value: &str) -> Result<(), MetadataError> {
        let is_tchar = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        if key.is_empty() || key.len() > METADATA_KEY_BYTES_MAX || !key.bytes().all(is_tchar) {
            return Err(MetadataError::Key);
        }
        if value.len() > METADATA_VALUE_BYTES_MAX || !value.is_ascii() {
            return Err(MetadataError::Value);
        }
        let bytes = self.bytes + key.len() + value.len();
        if bytes > METADATA_BYTES_MAX {
            return Err(MetadataError::TooLarge);
        }
        match self.entries.entry(key.into()) {
            Entry::Occupied(_) => Err(MetadataError::Repeated),
            Entry::Vacant(entry) => {
                entry.insert(value.into());
                self.bytes = bytes;
                Ok(())
            }
        }
    }

    /// The entries as messages carry them.
    pub fn build(self) -> Metadata {
        if self.entries.is_empty() {
            return Metadata::default();
        }
        let mut text = String::with_capacity(self.bytes);
        let mut ends = Vec::with_capacity(2 * self.entries.len());
        for part in self.entries.iter().flat_map(|(key, value)| [key, value]) {
            text.push_str(part);
            // At most METADATA_BYTES_MAX.
            ends.push(text.len() as u16);
        }
        Metadata(Some(Arc::new(Block { text: text.into(), ends: ends.into() })))
    }
}

impl std::fmt::Debug for Metadata {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Metadata({} entries)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(entries: &[(&str, &str)]) -> Result<Metadata, MetadataError> {
        Metadata::new(entries.iter().copied())
    }

    #[test]
    fn keys_are_http_tokens_of_256_bytes_at_most() {
        assert!(metadata(&[("!#$%&'*+-.^_`|~09azAZ", "")]).is_ok());
        for bad in ["", " ", "a b", "a:b", "a\"", "(", "é", "a\n", "/", "@", "{"] {
            assert_eq!(metadata(&[(bad, "v")]), Err(MetadataError::Key), "{bad:?}");
        }
        assert!(metadata(&[(&"k".repeat(METADATA_KEY_BYTES_MAX), "v")]).is_ok());
        assert_eq!(metadata(&[(&"k".repeat(METADATA_KEY_BYTES_MAX + 1), "v")]), Err(MetadataError::Key));
    }

    #[test]
    fn values_are_ascii_of_1024_bytes_at_most() {
        assert!(metadata(&[("k", "\u{0}\n\u{7f}")]).is_ok());
        assert_eq!(metadata(&[("k", "\u{80}")]), Err(MetadataError::Value));
        assert!(metadata(&[("k", &"v".repeat(METADATA_VALUE_BYTES_MAX))]).is_ok());
        assert_eq!(metadata(&[("k", &"v".repeat(METADATA_VALUE_BYTES_MAX + 1))]), Err(MetadataError::Value));
    }

    #[test]
    fn all_together_are_8192_bytes_at_most() {
        let full = METADATA_VALUE_BYTES_MAX;
        let mut metadata = MetadataBuilder::default();
        for key in ["a", "b", "c", "d", "e", "f", "g"] {
            assert_eq!(metadata.insert(key, &"v".repeat(full)), Ok(()));
        }
        let left = METADATA_BYTES_MAX - 7 * (1 + full);
        assert_eq!(metadata.insert("h", &"v".repeat(left)), Err(MetadataError::TooLarge));
        assert_eq!(metadata.insert("h", &"v".repeat(left - 1)), Ok(()));
        let metadata = metadata.build();
        assert_eq!((metadata.bytes(), metadata.len()), (METADATA_BYTES_MAX, 8));
    }

    #[test]
    fn four_thousand_keys_of_two_letters_took_300_kib() {
        let keys: Vec<_> = (0..4096_usize).map(|n| format!("{}{}", tchar(n / 64), tchar(n % 64))).collect();
        let metadata = Metadata::new(keys.iter().map(|key| (key, ""))).unwrap();
        assert_eq!((metadata.len(), metadata.bytes()), (4096, METADATA_BYTES_MAX));
        assert!(metadata.memory_bytes() < 32 * 1024);
        let copy = metadata.clone();
        assert!(Arc::ptr_eq(metadata.0.as_ref().unwrap(), copy.0.as_ref().unwrap()));
        let mut sorted = keys;
        sorted.sort();
        assert!(copy.iter().eq(sorted.iter().map(|key| (key.as_str(), ""))));
    }

    fn tchar(n: usize) -> char {
        let letters = "!#ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
        letters.chars().nth(n).unwrap()
    }

    #[test]
    fn a_key_stands_once_and_differs_by_case() {
        assert!(metadata(&[("k", "1"), ("K", "1")]).is_ok());
        assert_eq!(metadata(&[("k", "1"), ("l", "1"), ("k", "1")]), Err(MetadataError::Repeated));
    }

    #[test]
    fn the_order_of_entries_makes_no_difference() {
        let sorted = metadata(&[("a", "1"), ("b", "2")]).unwrap();
        assert_eq!(metadata(&[("b", "2"), ("a", "1")]), Ok(sorted.clone()));
        assert_eq!(sorted.iter().collect::<Vec<_>>(), [("a", "1"), ("b", "2")]);
    }
}
