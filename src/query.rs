//! The query of a request: split at its separators, each name and value decoded once.
//!
//! Knows: how `application/x-www-form-urlencoded` is written. Does not know: what a parameter means.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
use url::form_urlencoded;

/// A parameter as it stands in the query.
#[derive(Debug, PartialEq, Eq)]
pub struct Parameter<'a> {
    /// What stands before the first `=`, or all if there is none.
    pub name: Cow<'a, str>,
    /// What stands behind it.
    pub value: Cow<'a, str>,
    /// Whether both are UTF-8. What is not was replaced by U+FFFD: it can be told, but means nothing.
    pub is_utf8: bool,
}

/// The parameters of a query in their order. Empty ones are passed over.
pub fn parameters(query: &str) -> impl Iterator<Item = Parameter<'_>> {
    query.split('&').flat_map(|pair| {
        // A character that is none can't be mended by what stands on the other side of `=`.
        let is_utf8 = percent_decode_str(pair).decode_utf8().is_ok();
        let decoded = form_urlencoded::parse(pair.as_bytes());
        decoded.map(move |(name, value)| Parameter { name, value, is_utf8 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> Vec<(String, String, bool)> {
        let read = parameters(query);
        read.map(|one| (one.name.into_owned(), one.value.into_owned(), one.is_utf8)).collect()
    }

    fn good(pairs: &[(&str, &str)]) -> Vec<(String, String, bool)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned(), true)).collect()
    }

    #[test]
    fn parameters_are_split_before_they_are_decoded_and_decoded_once() {
        let query = "&a=1&&b=x=y&c%3Dd=%26e&f+g=%2B+%2541&h&=i&a=%C3%A9&j=%EF%BF%BD&k=%zz%2&";
        let expected = [
            ("a", "1"),
            ("b", "x=y"),
            ("c=d", "&e"),
            ("f g", "+ %41"),
            ("h", ""),
            ("", "i"),
            ("a", "é"),
            ("j", "\u{FFFD}"),
            ("k", "%zz%2"),
        ];
        assert_eq!(read(query), good(&expected));
        assert_eq!(read(""), []);
    }

    #[test]
    fn what_is_not_utf_8_says_so_wherever_it_stands() {
        for bad in ["a=%FF", "%FF=a", "a=%C3", "%C3=%A9", "a=%ED%A0%80", "%C3"] {
            let read = read(&format!("b=1&{bad}&c=2"));
            assert_eq!(read.iter().map(|(.., is_utf8)| *is_utf8).collect::<Vec<_>>(), [true, false, true]);
        }
    }
}
