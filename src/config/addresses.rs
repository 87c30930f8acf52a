//! Addresses and URLs as people write them, on the command line and in the file alike.

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use url::{Host, Url};

/// One of the places to listen at, as people know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listener {
    /// The key of its address.
    pub key: &'static str,
    /// The flag that sets the key.
    pub flag: &'static str,
}

impl Listener {
    /// Plain http.
    pub const HTTP: Self = Self { key: "listen", flag: "--listen" };
    /// https.
    pub const HTTPS: Self = Self { key: "tls_listen", flag: "--tls-listen" };
    /// The operator's own.
    pub const ADMIN: Self = Self { key: "admin_listen", flag: "--admin-listen" };
}

/// Whether not both can be listened on, since one takes what the other wants.
pub(super) fn are_in_conflict(a: SocketAddr, b: SocketAddr) -> bool {
    let has_all = a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() == b.port() && a.port() != 0 && (a.ip() == b.ip() || a.is_ipv4() == b.is_ipv4() && has_all)
}

/// Why nothing can be listened on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadListenAddress {
    /// No address and port.
    #[error(
        "{0:?} is no address with a port, such as 127.0.0.1:7080, localhost:7080, or 0.0.0.0:7080 for all of this machine"
    )]
    Malformed(String),
    /// A name that nobody knows.
    #[error("{0:?} can't be listened on: no address is known for that name")]
    UnknownName(String),
}

/// Why a text is no public URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPublicUrl {
    /// A host without a scheme in front.
    #[error("{text:?} does not say http or https: write {scheme}://{text}")]
    NoScheme {
        /// What was written.
        text: String,
        /// Which one is likely meant: nobody needs TLS on one machine.
        scheme: &'static str,
    },
    /// The URL that clients dial, instead of the one that they are told.
    #[error("a public URL is told with http or https, not with ws or wss, such as https://chat.example.com")]
    OfWebSocket,
    /// Nothing like it. The text is not shown: it may hold a password.
    #[error("it is no http or https URL, such as https://chat.example.com")]
    Malformed,
}

/// Reads an address and a port. In place of the address a name may stand; `localhost` is 127.0.0.1.
///
/// # Errors
/// When there is no port, or nobody knows the name.
pub fn listen_address(text: &str) -> Result<SocketAddr, BadListenAddress> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let malformed = || BadListenAddress::Malformed(text.to_owned());
    let (name, port) = text.rsplit_once(':').ok_or_else(malformed)?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let port: u16 = port.parse().map_err(|_| malformed())?;
    if name.is_empty() || !name.chars().all(is_name) {
        return Err(malformed());
    }
    if name.eq_ignore_ascii_case("localhost") {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    let known = (name, port).to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
    known.ok_or_else(|| BadListenAddress::UnknownName(name.to_owned()))
}

/// Reads a public URL as far as its scheme; [`Config::from_toml`](super::Config::from_toml) checks the rest of it.
///
/// # Errors
/// When it is no `http` or `https` URL; says what is missing.
pub fn public_url(text: &str) -> Result<Url, BadPublicUrl> {
    match Url::parse(text) {
        Ok(url) if matches!(url.scheme(), "http" | "https") => return Ok(url),
        Ok(url) if matches!(url.scheme(), "ws" | "wss") => return Err(BadPublicUrl::OfWebSocket),
        // `chat.example.com:8443` looks like a URL of a scheme that is called so.
        Ok(_) | Err(_) => {}
    }
    let completed = Url::parse(&format!("https://{text}"));
    let is_host = !text.is_empty() && !text.contains(['@', ' ']) && !text.contains("//");
    let is_host = is_host && !text.starts_with(['/', '?', '#']);
    match completed {
        Ok(url) if is_host && url.has_host() => {
            let scheme = if is_loopback(&url) { "http" } else { "https" };
            Err(BadPublicUrl::NoScheme { text: text.to_owned(), scheme })
        }
        _ => Err(BadPublicUrl::Malformed),
    }
}

/// Whether the host of the URL is this machine, whatever it is connected to.
pub fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        None => false,
    }
}

/// For a key that may be missing.
pub(super) fn optional_listen<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<SocketAddr>, D::Error> {
    listen(deserializer).map(Some)
}

/// For a key that has a default.
pub(super) fn listen<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    listen_address(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

/// For a list.
pub(super) fn public_urls<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Url>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts.iter().map(|text| public_url(text).map_err(D::Error::custom)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_be_a_name() {
        for (text, address) in [
            ("127.0.0.1:7080", "127.0.0.1:7080"),
            ("[::1]:0", "[::1]:0"),
            ("localhost:8080", "127.0.0.1:8080"),
            ("LocalHost:1", "127.0.0.1:1"),
        ] {
            assert_eq!(listen_address(text), Ok(address.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn what_is_no_address_is_told_what_one_looks_like() {
        for bad in [
            "",
            "8080",
            ":8080",
            "localhost",
            "localhost:",
            "localhost:x",
            "127.0.0.1:65536",
            "a b:1",
            "::1:x",
        ] {
            let error = listen_address(bad).unwrap_err();
            assert_eq!(error, BadListenAddress::Malformed(bad.to_owned()));
            assert!(error.to_string().contains("127.0.0.1:7080"), "{error}");
        }
        // This ending is kept for names that nobody has.
        let error = listen_address("nowhere.invalid:80").unwrap_err();
        assert!(
            matches!(&error, BadListenAddress::UnknownName(name) if name == "nowhere.invalid"),
            "{error}"
        );
    }

    #[test]
    fn a_public_url_without_its_scheme_is_told_what_is_missing() {
        for (host, scheme) in [
            ("chat.example.com", "https"),
            ("chat.example.com:8443", "https"),
            ("chat.example.com/wps", "https"),
            ("localhost.example.com", "https"),
            ("192.168.0.1:7080", "https"),
            ("localhost:7080", "http"),
            ("LOCALHOST:7080", "http"),
            ("chat.localhost", "http"),
            ("127.0.0.1:7080", "http"),
            ("127.1.2.3", "http"),
            ("[::1]:80", "http"),
        ] {
            let error = public_url(host).unwrap_err();
            assert!(error.to_string().ends_with(&format!("write {scheme}://{host}")), "{error}");
        }
        assert_eq!(public_url("wss://chat.example.com"), Err(BadPublicUrl::OfWebSocket));
        for bad in
            ["", "/wps", "ftp://chat.example.com", "user:hidden@chat.example.com", "https://", "two words"]
        {
            assert_eq!(public_url(bad), Err(BadPublicUrl::Malformed), "{bad}");
            assert!(!public_url(bad).unwrap_err().to_string().contains("hidden"));
        }
        assert!(public_url("https://chat.example.com/wps").is_ok());
    }
}
