//! Which pages may use the gateway.

use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::Deserialize;
use url::Url;

/// Pages that may use the gateway.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum AllowedOrigin {
    /// All of them: `*`.
    Any,
    /// Those of one origin, as browsers spell it: scheme, host, and the port if it is not the scheme's own; or `null`, which
    /// stands for pages that have none.
    One(String),
    /// Those of all hosts below one.
    Below {
        /// What stands before the host's own part: `https://`.
        before: String,
        /// What stands behind it: `.example.com`, and perhaps a port.
        after: String,
    },
}

/// That a text is no origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "an origin is a scheme with a host and perhaps a port, such as https://app.example.com or capacitor://localhost; \
     https://*.example.com stands for all hosts below that one, null for pages without an origin, * for all pages"
)]
pub struct BadOrigin;

/// What no page has the origin of: of the first two it is that of http and https.
const SCHEMES_OF_NO_PAGE: [&str; 4] = ["ws", "wss", "ftp", "file"];
const NO_ORIGIN: &str = "null";
const ANY_LABELS: &str = "*.";

impl AllowedOrigin {
    /// Whether a page of this origin is among them.
    pub fn includes(&self, origin: &str) -> bool {
        match self {
            Self::Any => true,
            Self::One(allowed) => allowed == origin,
            Self::Below { before, after } => {
                let own = origin.strip_prefix(&**before).and_then(|rest| rest.strip_suffix(&**after));
                let is_label = |label: &str| {
                    let mut bytes = label.bytes();
                    !label.is_empty()
                        && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
                };
                own.is_some_and(|own| own.split('.').all(is_label))
            }
        }
    }
}

impl FromStr for AllowedOrigin {
    type Err = BadOrigin;

    fn from_str(text: &str) -> Result<Self, BadOrigin> {
        match text {
            "*" => return Ok(Self::Any),
            NO_ORIGIN => return Ok(Self::One(text.to_owned())),
            _ => {}
        }
        let (scheme, host) = text.split_once("://").ok_or(BadOrigin)?;
        let Some(parent) = host.strip_prefix(ANY_LABELS) else { return Ok(Self::One(spelled(text)?)) };
        let parent = spelled(&format!("{scheme}://{parent}"))?;
        let (scheme, parent) = parent.split_once("://").ok_or(BadOrigin)?;
        // Nothing is below an address.
        let is_name = parent.split(':').next().is_some_and(|host| host.parse::<Ipv4Addr>().is_err());
        if parent.starts_with('[') || !is_name {
            return Err(BadOrigin);
        }
        Ok(Self::Below { before: format!("{scheme}://"), after: format!(".{parent}") })
    }
}

/// An origin as browsers spell it.
fn spelled(text: &str) -> Result<String, BadOrigin> {
    let url = Url::parse(text).map_err(|_| BadOrigin)?;
    let host = url.host_str().filter(|host| !host.is_empty()).ok_or(BadOrigin)?;
    let has_more = !matches!(url.path(), "" | "/")
        || url.query().is_some()
        || url.fragment().is_some()
        || !url.username().is_empty()
        || url.password().is_some()
        // It would match nothing, in silence.
        || host.contains('*');
    if has_more || SCHEMES_OF_NO_PAGE.contains(&url.scheme()) {
        return Err(BadOrigin);
    }
    let port = url.port().map_or(String::new(), |port| format!(":{port}"));
    Ok(format!("{}://{}{port}", url.scheme(), host.to_ascii_lowercase()))
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
            ("capacitor://localhost", "capacitor://localhost"),
            ("Ionic://LocalHost", "ionic://localhost"),
            ("app://shop:7", "app://shop:7"),
            ("chrome-extension://abcdefghijklmnop", "chrome-extension://abcdefghijklmnop"),
            ("null", "null"),
        ] {
            let allowed: AllowedOrigin = text.parse().unwrap();
            assert!(allowed.includes(origin), "{allowed:?}");
            assert!(!allowed.includes("https://app.example.com:8443"));
        }
        assert!("*".parse::<AllowedOrigin>().unwrap().includes("null"));
    }

    #[test]
    fn a_star_before_a_host_stands_for_all_hosts_below_it() {
        let below: AllowedOrigin = "HTTPS://*.Example.com".parse().unwrap();
        for origin in ["https://a.example.com", "https://a-b.c_d.example.com", "https://xn--4ca.example.com"]
        {
            assert!(below.includes(origin), "{origin}");
        }
        for origin in [
            "https://example.com",
            "https://.example.com",
            "https://a..example.com",
            "https://aexample.com",
            "http://a.example.com",
            "https://a.example.com:8443",
            "https://a.example.com.evil.example",
            "https://evil.example/.example.com",
            "https://evil.example#.example.com",
            "https://evil@a.example.com",
            "https://evil:1.example.com",
            "null",
            "",
        ] {
            assert!(!below.includes(origin), "{origin}");
        }
        let with_port: AllowedOrigin = "http://*.localhost:3000".parse().unwrap();
        assert!(with_port.includes("http://app.localhost:3000"));
        assert!(!with_port.includes("http://app.localhost"));
    }

    #[test]
    fn what_is_no_origin_is_refused() {
        for text in [
            "",
            "app.example.com",
            "NULL",
            "null://",
            "capacitor:localhost",
            "capacitor://",
            "capacitor://localhost/x",
            "wss://a.example",
            "ftp://a.example",
            "https://",
            "https://a.example/x",
            "https://a.example?x",
            "https://a.example#x",
            "https://user@a.example",
            "https://*.example.com/*",
            "https://*.*.example.com",
            "https://a.*.example.com",
            "https://*a.example.com",
            "https://*.",
            "https://*.10.0.0.1",
            "https://*.[::1]",
            "*.example.com",
            "https://*",
            "ws://a.example",
            "file:///tmp",
        ] {
            assert_eq!(text.parse::<AllowedOrigin>(), Err(BadOrigin), "{text}");
        }
    }
}
