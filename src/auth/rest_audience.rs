//! The audience of an application's token: the URL of the one request that it was made for.

use url::Url;

use super::url_parts::{dialled, segments};
use super::wanted::{Wanted, bases};

/// What the `aud` of a token for the data-plane REST API is compared with.
#[derive(Debug, Clone, Copy)]
pub struct RestAudience<'a> {
    /// The gateway's public base URLs, each perhaps with a path prefix. Their scheme counts for nothing: a proxy may have
    /// another one than applications dial.
    pub public_urls: &'a [Url],
    /// The `Host` header: host and perhaps port, as the application dialled them. It counts only where there are no public
    /// URLs.
    pub host: Option<&'a str>,
    /// The path of the request as it was sent, without a public URL's prefix.
    pub path: &'a str,
    /// Which of its segments, counted from 0, are names of groups, users and connections: their case counts.
    pub names_at: &'a [usize],
}

impl RestAudience<'_> {
    /// Whether a token for this audience is good for the request: an `http`, `https`, `ws` or `wss` URL of this path on one
    /// of the public hosts behind its prefix, or where there are none on the dialled one.
    ///
    /// SDKs and proxies encode differently what the token names and what they send, and differ in case and in default
    /// ports. So hosts are compared with default ports left out, and paths by their segments, each decoded once, an empty
    /// tail left out: names letter by letter, since a token for the group `A` must not open `a`, all others without
    /// regard to case. A query and a fragment count for nothing. The path is not normalised further: a connection may be
    /// named `..`.
    pub(super) fn accepts(&self, audience: &str) -> bool {
        let Some((scheme, rest)) = audience.split_once("://") else { return false };
        let path_at = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(path_at);
        let path = rest.split(['?', '#']).next().unwrap_or_default();
        let Some(origin) = dialled(scheme, authority) else { return false };
        let of_path = |path: &str| segments(path.trim_start_matches('/'));
        let (Some(named), Some(asked)) = (of_path(path), of_path(self.path)) else { return false };
        let is_behind = |base: &Url| {
            let prefix = of_path(base.path()).unwrap_or_default();
            let parts = named.split_at_checked(prefix.len());
            parts.is_some_and(|(before, rest)| {
                are_alike(before, &prefix, &[]) && are_alike(rest, &asked, self.names_at)
            })
        };
        let same_host = |base: &Url| base.host_str() == origin.host_str() && base.port() == origin.port();
        let is_public = self.public_urls.iter().any(|base| same_host(base) && is_behind(base));
        if !self.public_urls.is_empty() {
            return is_public;
        }
        let is_dialled = self.host.and_then(|host| dialled(scheme, host)).is_some_and(|url| same_host(&url));
        is_dialled && are_alike(&named, &asked, self.names_at)
    }

    /// The URLs of this request that are accepted. Their scheme counts for nothing.
    pub(super) fn wanted(&self) -> Wanted {
        let dialled = || self.host.and_then(|host| dialled("http", host));
        let base = |url: Url| url.as_str().trim_end_matches('/').to_owned();
        Wanted::one_of(bases(self.public_urls, dialled).map(|url| base(url) + self.path))
    }
}

/// Whether segments are the same but for the case of those that are no names.
fn are_alike(named: &[String], asked: &[String], names_at: &[usize]) -> bool {
    let is_alike = |(at, (named, asked)): (usize, (&String, &String))| {
        named == asked || !names_at.contains(&at) && named.to_lowercase() == asked.to_lowercase()
    };
    named.len() == asked.len() && named.iter().zip(asked).enumerate().all(is_alike)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "/api/hubs/Chat/users/u%201/:send";

    fn urls(list: &[&str]) -> Vec<Url> {
        list.iter().map(|url| url.parse().unwrap()).collect()
    }

    fn accepts(public: &[&str], host: &str, path: &str, audience: &str) -> bool {
        let public_urls = &urls(public);
        RestAudience { public_urls, host: Some(host), path, names_at: &[4] }.accepts(audience)
    }

    #[test]
    fn the_url_of_the_request_is_accepted_however_it_is_spelled() {
        for audience in [
            "https://gw.example/api/hubs/Chat/users/u%201/:send?api-version=2024-12-01&x=/y",
            "http://gw.example/api/hubs/chat/users/u%201/:send",
            "https://GW.example:443/api/hubs/Chat/users/u 1/%3Asend/",
            "wss://gw.example/api/hubs/CHAT/users/u%201/:send#f",
            "WS://gw.example:80/API/hubs/chat/USERS/%75%201/:SEND?",
        ] {
            assert!(accepts(&[], "gw.example", PATH, audience), "{audience}");
        }
        assert!(accepts(
            &[],
            "gw.example",
            "/api/hubs/c/users/!*'()/:send",
            "http://gw.example/api/hubs/c/users/%21%2A%27%28%29/:send"
        ));
        assert!(accepts(
            &[],
            "gw.example",
            "/api/hubs/c/users/../:send",
            "http://gw.example/api/hubs/c/users/../:send"
        ));
        assert!(accepts(&[], "127.0.0.1:8080", "/api/health", "http://127.0.0.1:8080/api/health"));
        assert!(accepts(&[], "[::1]:8080", "/api/health", "http://[::1]:8080/api/health"));
    }

    #[test]
    fn anything_else_is_refused() {
        for audience in [
            "https://gw.example/api/hubs/Chat/users/u%201/:sendX",
            "https://gw.example/api/hubs/Chat/users/u%201/:send/more",
            "https://gw.example/api/hubs/Chat/users/u%201",
            "https://gw.example/api/hubs/other/users/u%201/:send",
            "https://gw.example/api/hubs/Chat/users/U%201/:send",
            "https://gw.example/api/hubs/Chat/users/u%25201/:send",
            "https://gw.example/api/hubs/Chat/users/u%2F1/:send",
            "https://gw.example/x/api/hubs/Chat/users/u%201/:send",
            "https://other.example/api/hubs/Chat/users/u%201/:send",
            "https://gw.example:8443/api/hubs/Chat/users/u%201/:send",
            "https://gw.example:80/api/hubs/Chat/users/u%201/:send",
            "ftp://gw.example/api/hubs/Chat/users/u%201/:send",
            "https://u@gw.example/api/hubs/Chat/users/u%201/:send",
            "https://gw.example\\@other/api/hubs/Chat/users/u%201/:send",
            "/api/hubs/Chat/users/u%201/:send",
            "gw.example/api/hubs/Chat/users/u%201/:send",
            "https://gw.example/client/hubs/Chat",
            "https://gw.example",
            "https://",
            "",
        ] {
            assert!(!accepts(&[], "gw.example", PATH, audience), "{audience}");
            assert!(!accepts(&["https://gw.example"], "inner", PATH, audience), "{audience}");
        }
    }

    #[test]
    fn public_urls_are_accepted_behind_a_proxy_with_their_prefix() {
        let path = "/api/hubs/chat/:send";
        let public = ["https://gw.example/wps", "https://b.example:8443"];
        for audience in [
            "https://gw.example/wps/api/hubs/chat/:send",
            "http://gw.example/WPS/api/hubs/chat/:send",
            "https://b.example:8443/api/hubs/chat/:send",
        ] {
            assert!(accepts(&public, "inner:8080", path, audience), "{audience}");
        }
        for audience in [
            "https://gw.example/api/hubs/chat/:send",
            "https://gw.example/wpsx/api/hubs/chat/:send",
            "https://b.example/api/hubs/chat/:send",
            "https://b.example:8443/wps/api/hubs/chat/:send",
            "http://inner:8080/api/hubs/chat/:send",
            "http://inner:8080/wps/api/hubs/chat/:send",
        ] {
            assert!(!accepts(&public, "inner:8080", path, audience), "{audience}");
        }
    }

    #[test]
    fn behind_a_prefix_too_names_are_compared_letter_by_letter() {
        let public = ["https://gw.example/wps"];
        let opens = |audience: &str, group: &str| {
            accepts(&public, "gw.example", &format!("/api/hubs/chat/groups/{group}/:send"), audience)
        };
        let audience = "https://gw.example/WPS/API/hubs/Chat/Groups/A%C3%89/:Send";
        assert!(opens(audience, "A%c3%89"), "{audience}");
        for other in ["a%C3%89", "A%C3%A9", "AE%CC%81"] {
            assert!(!opens(audience, other), "{audience} {other}");
        }
    }

    #[test]
    fn what_is_wanted_is_accepted() {
        let public_urls = &urls(&["https://gw.example/wps/"]);
        let (host, names_at) = (Some("127.0.0.1:7080"), &[4][..]);
        for (public_urls, wanted) in [
            (&[][..], format!("http://127.0.0.1:7080{PATH}")),
            (public_urls, format!("https://gw.example/wps{PATH}")),
        ] {
            let audience = RestAudience { public_urls, host, path: PATH, names_at };
            assert_eq!(audience.wanted().to_string(), wanted);
            assert!(audience.accepts(&wanted), "{wanted}");
        }
    }

    #[test]
    fn a_host_header_is_only_a_host() {
        let audience = "http://gw.example/api/health";
        for host in ["gw.example/", "u@gw.example", "gw.example?x", "gw.example#", "", "gw.example:x"] {
            assert!(!accepts(&[], host, "/api/health", audience), "{host}");
        }
    }
}
