//! Texts as the language counts and changes them: in UTF-16 code units, whatever the locale.

use memchr::memmem;

/// A length as the language has it.
pub fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The length of a text.
pub fn utf16_len(text: &str) -> i64 {
    count(text.encode_utf16().count())
}

/// In lower case.
pub fn lower(text: &str) -> String {
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    each_char(text, char::to_lowercase)
}

/// In upper case.
pub fn upper(text: &str) -> String {
    if text.is_ascii() {
        return text.to_ascii_uppercase();
    }
    each_char(text, char::to_uppercase)
}

/// Maps characters one by one and leaves those alone that would become several: whatever the locale.
fn each_char<I: Iterator<Item = char>>(text: &str, map: fn(char) -> I) -> String {
    let mapped = |c: char| {
        let mut all = map(c);
        match (all.next(), all.next()) {
            (Some(one), None) => one,
            _ => c,
        }
    };
    text.chars().map(mapped).collect()
}

/// From a position on, to the end or so many units. None when the part is not wholly inside. Half of a surrogate pair
/// becomes a replacement character.
pub fn substring(text: &str, start: i64, length: Option<i64>) -> Option<String> {
    let units: Vec<u16> = text.encode_utf16().collect();
    let start = usize::try_from(start).ok()?;
    let end = match length {
        Some(length) => start.checked_add(usize::try_from(length).ok()?)?,
        None => units.len(),
    };
    Some(String::from_utf16_lossy(units.get(start..end)?))
}

/// Whether a part is there. Takes time for each letter of the text once, however much alike the part is.
pub fn contains(text: &str, part: &str) -> bool {
    memmem::find(text.as_bytes(), part.as_bytes()).is_some()
}

/// Where a part begins; -1 when it is not there.
pub fn index_of(text: &str, part: &str) -> i64 {
    memmem::find(text.as_bytes(), part.as_bytes()).map_or(-1, |at| utf16_len(&text[..at]))
}
