//! The URL that a token should have been for, as whoever brought another one is told.

use std::fmt;

use url::Url;

/// So much of the URLs is told.
const CHARS_MAX: usize = 512;

/// The URLs of which the `aud` of a token has to name one, with "or" between them: printable ASCII, at most so long that it
/// can stand in a line of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted(Box<str>);

impl Wanted {
    /// None of the URLs may have a query or a user.
    pub(super) fn one_of(urls: impl Iterator<Item = String>) -> Self {
        let mut text = String::new();
        for url in urls {
            if !text.is_empty() {
                text.push_str(" or ");
            }
            for letter in url.chars() {
                match letter {
                    '!'..='~' => text.push(letter),
                    _ => text.extend(letter.escape_unicode()),
                }
                if text.len() > CHARS_MAX {
                    text.truncate(CHARS_MAX);
                    text.push_str("...");
                    return Self(text.into());
                }
            }
        }
        if text.is_empty() {
            text.push_str("none, since the request names no host");
        }
        Self(text.into())
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The bases at which a gateway is reached: its public URLs, or else, where there are none, the one that was dialled.
pub(super) fn bases<'a>(
    public_urls: &'a [Url],
    dialled: impl FnOnce() -> Option<Url>,
) -> impl Iterator<Item = Url> + 'a {
    let dialled = if public_urls.is_empty() { dialled() } else { None };
    public_urls.iter().cloned().chain(dialled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(urls: &[&str]) -> String {
        Wanted::one_of(urls.iter().map(|url| (*url).to_owned())).to_string()
    }

    #[test]
    fn a_url_is_told_in_printable_letters_and_not_for_ever() {
        assert_eq!(wanted(&["http://a/b?'\"~"]), "http://a/b?'\"~");
        assert_eq!(wanted(&["http://a/ü\n\u{202e}"]), "http://a/\\u{fc}\\u{a}\\u{202e}");
        assert_eq!(wanted(&["http://a", "https://b"]), "http://a or https://b");
        assert_eq!(wanted(&[&"x".repeat(CHARS_MAX)]), "x".repeat(CHARS_MAX));
        assert_eq!(wanted(&[&"x".repeat(CHARS_MAX + 1)]), format!("{}...", "x".repeat(CHARS_MAX)));
        assert_eq!(wanted(&["http://a"; 1000]).len(), CHARS_MAX + 3);
        assert!(wanted(&[]).contains("names no host"));
    }
}
