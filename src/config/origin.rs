//! Which pages may use the gateway.

use std::str::FromStr;

use serde::Deserialize;
use url::Url;

/// Pages that may use the gateway.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum AllowedOrigin {
    /// All of them: `*`.
    Any,
    /// Those of one origin, as browsers spell it: scheme, host, and the port if it is not the scheme's own.
    One(String),
}

/// That a text is no origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "an origin is http or https with a host and perhaps a port, such as https://app.example.com; * stands for all"
)]
pub struct BadOrigin;

impl AllowedOrigin {
    /// Whether a page of this origin is among them.
    pub fn includes(&self, origin: &str) -> bool {
        match self {
            Self::Any => true,
            Self::One(allowed) => allowed == origin,
        }
    }
}

impl FromStr for AllowedOrigin {
    type Err = BadOrigin;

    fn from_str(text: &str) -> Result<Self, BadOrigin> {
        if text == "*" {
            return Ok(Self::Any);
        }
        let url = Url::parse(text).map_err(|_| BadOrigin)?;
        let has_more = url.path() != "/"
            || url.query().is_some()
            || url.fragment().is_some()
            || !url.username().is_empty()
            || url.password().is_some()
            // A name in a certificate may have one, a host has none: it would match nothing, in silence.
            || url.host_str().is_some_and(|host| host.contains('*'));
        if has_more || !matches!(url.scheme(), "http" | "https") {
            return Err(BadOrigin);
        }
        Ok(Self::One(url.origin().ascii_serialization()))
    }
}

impl TryFrom<String> for AllowedOrigin {
    type Error = BadOrigin;

    fn try_from(text: String) -> Result<Self, BadOrigin> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_spelled_as_browsers_do() {
        for (text, origin) in [
            ("https://app.example.com", "https://app.example.com"),
            ("HTTPS://App.Example.com:443/", "https://app.example.com"),
            ("http://localhost:3000", "http://localhost:3000"),
            ("http://[::1]:80", "http://[::1]"),
        ] {
            let allowed: AllowedOrigin = text.parse().unwrap();
            assert!(allowed.includes(origin), "{allowed:?}");
            assert!(!allowed.includes("https://app.example.com:8443"));
        }
        assert!("*".parse::<AllowedOrigin>().unwrap().includes("null"));
    }

    #[test]
    fn what_is_no_origin_is_refused() {
        for text in [
            "",
            "null",
            "app.example.com",
            "https://",
            "https://a.example/x",
            "https://a.example?x",
            "https://a.example#x",
            "https://user@a.example",
            "https://*.example.com/*",
            "https://*.example.com",
            "https://*",
            "ws://a.example",
            "file:///tmp",
        ] {
            assert_eq!(text.parse::<AllowedOrigin>(), Err(BadOrigin), "{text}");
        }
    }
}
