//! Which pages a browser may bring along, by the `Origin` that it names; only browsers name one.
//!
//! An access token in the URL is no ambient authority: a page that has one was given it, so by default it may come from
//! anywhere. Where a hub takes clients without a token, any page that somebody visits could connect from inside their
//! network; by default only pages of the gateway's own origin may. A name that a page's owner has resolve to the gateway
//! (DNS rebinding) makes no own origin: that takes an address, `localhost`, or a public URL.

use axum::http::HeaderMap;
use axum::http::header::{HOST, ORIGIN};
use url::{Host, Url};

use crate::auth;
use crate::config::{Config, is_loopback};

/// Whether the caller may upgrade, as far as its page is concerned. `has_token` tells whether it proves with a secret that
/// it may.
pub(super) fn may_upgrade(headers: &HeaderMap, config: &Config, has_token: bool) -> bool {
    let mut origins = headers.get_all(ORIGIN).iter();
    let Some(first) = origins.next() else { return true };
    // Browsers send one. Whatever else this is, it is nobody's.
    let origin = first.to_str().ok().filter(|_| origins.next().is_none()).unwrap_or_default();
    if !config.allowed_origins.is_empty() {
        return config.allowed_origins.iter().any(|allowed| allowed.includes(origin));
    }
    has_token || is_own(origin, headers, &config.public_urls)
}

/// Whether a request comes from this machine, where everybody knows the access key: any page that somebody visits has
/// it too. So it has to be dialled by a loopback host or a public URL's, else the name may be one that a page's owner has
/// resolve to loopback; and a page has to be of such a host, or of a listed origin.
pub(super) fn is_local(headers: &HeaderMap, config: &Config) -> bool {
    let host = headers.get(HOST).and_then(|host| auth::dialled("http", host.to_str().ok()?));
    let is_public = |url: &Url| config.public_urls.iter().any(|public| public.host() == url.host());
    let is_ours = |url: &Url| is_loopback(url) || is_public(url);
    let is_own_page = |origin: &str| {
        let is_listed = config.allowed_origins.iter().any(|allowed| allowed.includes(origin));
        let page = Url::parse(origin).ok().filter(|page| matches!(page.scheme(), "http" | "https"));
        is_listed || page.is_some_and(|page| is_ours(&page))
    };
    let mut origins = headers.get_all(ORIGIN).iter();
    host.is_some_and(|host| is_ours(&host)) && origins.all(|origin| origin.to_str().is_ok_and(is_own_page))
}

fn is_own(origin: &str, headers: &HeaderMap, public_urls: &[Url]) -> bool {
    if public_urls.iter().any(|url| url.origin().ascii_serialization() == origin) {
        return true;
    }
    let Ok(page) = Url::parse(origin) else { return false };
    // A proxy may have ended TLS: the scheme that was dialled can only be the page's.
    let dialled = headers.get(HOST).and_then(|host| auth::dialled(page.scheme(), host.to_str().ok()?));
    let is_trusted = match page.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(_) | Host::Ipv6(_)) => true,
        None => false,
    };
    is_trusted && dialled.is_some_and(|dialled| dialled.origin() == page.origin())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(host: &str, origins: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_str(host).unwrap());
        for origin in origins {
            headers.append(ORIGIN, HeaderValue::from_str(origin).unwrap());
        }
        headers
    }

    fn config(allowed: &[&str], public: &[&str]) -> Config {
        Config {
            allowed_origins: allowed.iter().map(|origin| origin.parse().unwrap()).collect(),
            public_urls: public.iter().map(|url| url.parse().unwrap()).collect(),
            ..Config::default()
        }
    }

    #[test]
    fn whoever_names_no_origin_is_no_page() {
        for allowed in [&[][..], &["https://app.example"]] {
            for has_token in [true, false] {
                assert!(may_upgrade(&headers("evil.example", &[]), &config(allowed, &[]), has_token));
            }
        }
    }

    #[test]
    fn by_default_a_token_may_come_from_any_page() {
        for origins in [&["https://any.example"][..], &["null"], &["a", "b"]] {
            assert!(may_upgrade(&headers("h", origins), &config(&[], &[]), true));
        }
    }

    #[test]
    fn by_default_whoever_has_no_token_comes_from_an_own_page() {
        const PUBLIC: &str = "https://chat.example/wps";
        for (host, origin, is_own) in [
            ("127.0.0.1:8080", "http://127.0.0.1:8080", true),
            ("localhost", "http://localhost", true),
            ("localhost:443", "https://localhost", true),
            ("[::1]:8080", "http://[::1]:8080", true),
            ("10.0.0.1", "https://10.0.0.1", true),
            ("chat.example", "https://chat.example", true),
            // A proxy may have put another host in place.
            ("inner:8080", "https://chat.example", true),
            ("127.0.0.1:8080", "http://127.0.0.1:3000", false),
            ("127.0.0.1:8080", "http://localhost:8080", false),
            ("chat.example", "http://chat.example", false),
            ("127.0.0.1:8080", "https://evil.example", false),
            // A name that resolves to this gateway.
            ("evil.example:8080", "http://evil.example:8080", false),
            ("127.0.0.1:8080", "null", false),
            ("127.0.0.1:8080", "", false),
            ("x@127.0.0.1:8080", "http://127.0.0.1:8080", false),
        ] {
            let allowed = may_upgrade(&headers(host, &[origin]), &config(&[], &[PUBLIC]), false);
            assert_eq!(allowed, is_own, "{origin} at {host}");
        }
        let own = "http://127.0.0.1";
        assert!(!may_upgrade(&headers("127.0.0.1", &[own, own]), &config(&[], &[]), false));
    }

    #[test]
    fn where_everybody_knows_the_key_only_this_machines_pages_may_come() {
        for (host, origins, is_good) in [
            ("127.0.0.1:8080", &[][..], true),
            ("localhost:8080", &[], true),
            ("[::1]:8080", &[], true),
            ("127.0.0.1:8080", &["http://127.0.0.1:8080"], true),
            ("127.0.0.1:8080", &["http://localhost:3000"], true),
            ("127.0.0.1:8080", &["https://app.localhost"], true),
            ("127.0.0.1:8080", &["https://evil.example"], false),
            ("127.0.0.1:8080", &["http://localhost.evil.example"], false),
            ("127.0.0.1:8080", &["http://127.0.0.1.evil.example"], false),
            ("127.0.0.1:8080", &["null"], false),
            ("127.0.0.1:8080", &[""], false),
            ("127.0.0.1:8080", &["file://"], false),
            ("127.0.0.1:8080", &["capacitor://localhost"], false),
            ("127.0.0.1:8080", &["http://localhost", "https://evil.example"], false),
            ("evil.example:8080", &[], false),
            ("evil.example:8080", &["http://evil.example:8080"], false),
            ("0.0.0.0:8080", &[], false),
            ("", &[], false),
        ] {
            assert_eq!(
                is_local(&headers(host, origins), &config(&[], &[])),
                is_good,
                "{origins:?} at {host}"
            );
        }
        assert!(!is_local(&HeaderMap::new(), &config(&[], &[])));
        let listed = config(&["https://app.example"], &["https://chat.example/wps"]);
        assert!(is_local(&headers("chat.example", &["https://chat.example"]), &listed));
        assert!(is_local(&headers("localhost", &["https://app.example"]), &listed));
        assert!(!is_local(&headers("localhost", &["https://other.example"]), &listed));
    }

    #[test]
    fn a_list_binds_every_page_with_a_token_or_without() {
        let listed = config(&["https://app.example", "http://localhost:3000"], &["https://chat.example"]);
        for has_token in [true, false] {
            for (origin, is_listed) in [
                ("https://app.example", true),
                ("http://localhost:3000", true),
                ("http://app.example", false),
                ("https://app.example.evil.example", false),
                ("https://chat.example", false),
                ("null", false),
            ] {
                let allowed = may_upgrade(&headers("chat.example", &[origin]), &listed, has_token);
                assert_eq!(allowed, is_listed, "{origin}");
            }
            assert!(may_upgrade(&headers("h", &["https://any.example"]), &config(&["*"], &[]), has_token));
        }
    }
}
