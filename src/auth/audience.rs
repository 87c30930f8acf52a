//! The audience of a client token: the endpoint at which the token may be used.

use url::Url;

use super::url_parts::{client_endpoint, dialled, segments};
use super::wanted::{Wanted, bases};

/// What a client token's `aud` is compared with: where the client is and which hub it asks for.
#[derive(Debug, Clone, Copy)]
pub struct AudienceContext<'a> {
    /// The gateway's public base URLs (`http` or `https`), each perhaps with a path prefix.
    pub public_urls: &'a [Url],
    /// The `Host` header: host and perhaps port, as the client dialled them. It counts only where there are no public
    /// URLs.
    pub host: Option<&'a str>,
    /// The hub that the client asks for, decoded, in the client's own spelling.
    pub hub: &'a str,
}

impl AudienceContext<'_> {
    /// Whether a token for this audience may be used here.
    ///
    /// The audience is the client endpoint, `http(s)://host[:port][/prefix]/client/hubs/{hub}`, on one of the public
    /// URLs, or else, where there are none, on the host that the client dialled; `ws` and `wss` stand for `http` and `https`, as
    /// in the URL that the client dials. Behind a proxy that ends TLS this gateway can't see the scheme that was dialled, so
    /// with the dialled host both are accepted and the scheme only tells the default port.
    ///
    /// Compared without regard to case, with default ports and percent-encoding normalised; the query, the fragment
    /// and a trailing slash count for nothing. (SDKs differ in all of these: one lower-cases the endpoint, one
    /// drops the default port, and all keep the caller's spelling of the hub.)
    pub(super) fn accepts(&self, audience: &str) -> bool {
        let Some(audience) = in_http(audience) else { return false };
        let Some(path) = segments_of(&audience) else { return false };
        let public = self
            .public_urls
            .iter()
            .any(|base| same_origin(&audience, base) && self.is_client_path(&path, &prefix_of(base)));
        public || self.public_urls.is_empty() && self.accepts_dialled_host(&audience, &path)
    }

    /// The client endpoints that are accepted. Of a dialled host both schemes are: http stands for them.
    pub(super) fn wanted(&self) -> Wanted {
        let dialled = || self.host.and_then(|host| dialled("http", host));
        let endpoints = bases(self.public_urls, dialled).filter_map(|base| client_endpoint(&base, self.hub));
        Wanted::one_of(endpoints.map(String::from))
    }

    fn accepts_dialled_host(&self, audience: &Url, path: &[String]) -> bool {
        let Some(dialled) = self.host.and_then(|host| dialled(audience.scheme(), host)) else { return false };
        same_origin(audience, &dialled) && self.is_client_path(path, &[])
    }

    fn is_client_path(&self, path: &[String], prefix: &[String]) -> bool {
        let Some(rest) = path.strip_prefix(prefix) else { return false };
        matches!(rest, [client, hubs, hub]
            if client == "client" && hubs == "hubs" && *hub == self.hub.to_lowercase())
    }
}

/// The URL with `http` or `https` as its scheme; none if it has another one, or a user.
fn in_http(audience: &str) -> Option<Url> {
    let mut url = Url::parse(audience).ok()?;
    let scheme = match url.scheme() {
        "http" | "ws" => "http",
        "https" | "wss" => "https",
        _ => return None,
    };
    url.set_scheme(scheme).ok()?;
    (url.username().is_empty() && url.password().is_none()).then_some(url)
}

fn same_origin(a: &Url, b: &Url) -> bool {
    a.scheme() == b.scheme()
        && a.host_str().is_some()
        && a.host_str() == b.host_str()
        && a.port_or_known_default() == b.port_or_known_default()
}

fn segments_of(url: &Url) -> Option<Vec<String>> {
    let segments = segments(url.path().strip_prefix('/')?)?;
    Some(segments.iter().map(|segment| segment.to_lowercase()).collect())
}

fn prefix_of(base: &Url) -> Vec<String> {
    segments_of(base).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(list: &[&str]) -> Vec<Url> {
        list.iter().map(|url| url.parse().unwrap()).collect()
    }

    fn dialled(host: &str, hub: &str, audience: &str) -> bool {
        AudienceContext { public_urls: &[], host: Some(host), hub }.accepts(audience)
    }

    fn published(public_url: &str, hub: &str, audience: &str) -> bool {
        AudienceContext { public_urls: &urls(&[public_url]), host: None, hub }.accepts(audience)
    }

    #[test]
    fn the_dialled_host_is_accepted_with_either_scheme() {
        assert!(dialled("127.0.0.1:8080", "chat", "http://127.0.0.1:8080/client/hubs/chat"));
        assert!(dialled("chat.example:8443", "chat", "https://chat.example:8443/client/hubs/chat"));
        assert!(dialled("[::1]:8080", "chat", "http://[::1]:8080/client/hubs/chat"));
    }

    #[test]
    fn other_schemes_are_refused() {
        for scheme in ["ftp", "urn", "wsss", "file"] {
            let audience = format!("{scheme}://gw.example/client/hubs/chat");
            assert!(!dialled("gw.example", "chat", &audience), "{audience}");
            assert!(!published("https://gw.example", "chat", &audience), "{audience}");
        }
    }

    #[test]
    fn a_token_for_the_websocket_url_that_its_client_dials_was_refused() {
        assert!(dialled("127.0.0.1:8080", "chat", "ws://127.0.0.1:8080/client/hubs/chat"));
        assert!(dialled("gw.example", "chat", "wss://gw.example:443/client/hubs/Chat"));
        assert!(published("https://gw.example/wps", "chat", "wss://gw.example/wps/client/hubs/chat"));
        assert!(published("http://gw.example", "chat", "ws://gw.example:80/client/hubs/chat"));
        for other in [
            "ws://gw.example/client/hubs/chat",
            "wss://gw.example/client/hubs/other",
            "wss://other.example/client/hubs/chat",
            "wss://gw.example:8443/client/hubs/chat",
            "wss://u@gw.example/client/hubs/chat",
            "wss://gw.example/api/hubs/chat",
        ] {
            assert!(!published("https://gw.example", "chat", other), "{other}");
        }
    }

    #[test]
    fn a_public_url_fixes_the_scheme() {
        assert!(published("https://gw.example", "chat", "https://gw.example/client/hubs/chat"));
        assert!(!published("https://gw.example", "chat", "http://gw.example/client/hubs/chat"));
    }

    #[test]
    fn default_ports_are_normalised() {
        assert!(dialled("gw.example", "chat", "https://gw.example:443/client/hubs/chat"));
        assert!(dialled("gw.example:443", "chat", "https://gw.example/client/hubs/chat"));
        assert!(dialled("gw.example", "chat", "http://gw.example:80/client/hubs/chat"));
        assert!(published("https://gw.example:443", "chat", "https://gw.example/client/hubs/chat"));
        assert!(published("https://gw.example", "chat", "https://gw.example:443/client/hubs/chat"));
        assert!(!dialled("gw.example", "chat", "https://gw.example:80/client/hubs/chat"));
        assert!(!dialled("gw.example:8080", "chat", "http://gw.example/client/hubs/chat"));
        assert!(!published("https://gw.example", "chat", "https://gw.example:8443/client/hubs/chat"));
    }

    #[test]
    fn case_counts_nowhere() {
        assert!(dialled("GW.example", "Chat", "HTTPS://gw.EXAMPLE/Client/HUBS/cHAT"));
        assert!(published("https://Gw.example/WPS", "CHAT", "https://gw.example/wps/client/hubs/chat"));
    }

    #[test]
    fn query_fragment_and_trailing_slash_count_for_nothing() {
        for tail in ["/", "?x=1", "/?x=1", "#f"] {
            let audience = format!("http://gw.example/client/hubs/chat{tail}");
            assert!(dialled("gw.example", "chat", &audience), "{audience}");
        }
    }

    #[test]
    fn hubs_are_compared_decoded() {
        assert!(dialled("gw.example", "a[1],b`", "http://gw.example/client/hubs/a%5B1%5D%2Cb%60"));
        assert!(dialled("gw.example", "a[1],b`", "http://gw.example/client/hubs/a[1],b`"));
        assert!(!dialled("gw.example", "chat", "http://gw.example/client/hubs/ch%2561t"));
        assert!(!dialled("gw.example", "a/b", "http://gw.example/client/hubs/a/b"));
    }

    #[test]
    fn another_hub_host_or_path_is_refused() {
        for audience in [
            "http://gw.example/client/hubs/other",
            "http://other.example/client/hubs/chat",
            "http://gw.example.evil/client/hubs/chat",
            "http://gw.example/client/hubs/chat/more",
            "http://gw.example/client/hubs/chatX",
            "http://gw.example/client/hubs/",
            "http://gw.example/client/hubs",
            "http://gw.example/client/hubs//chat",
            "http://gw.example/clients/mqtt/hubs/chat",
            "http://gw.example/api/hubs/chat",
            "http://gw.example/client/?hub=chat",
            "http://gw.example/x/client/hubs/chat",
            "http://gw.example",
            "http://user@gw.example/client/hubs/chat",
            "http://user:secret@gw.example/client/hubs/chat",
            "gw.example/client/hubs/chat",
            "/client/hubs/chat",
            "chat",
            "",
        ] {
            assert!(!dialled("gw.example", "chat", audience), "{audience}");
            assert!(!published("http://gw.example", "chat", audience), "{audience}");
        }
    }

    #[test]
    fn a_public_urls_prefix_is_part_of_the_audience() {
        let with = "https://gw.example/a/b/client/hubs/chat";
        let without = "https://gw.example/client/hubs/chat";
        for base in ["https://gw.example/a/b", "https://gw.example/a/b/"] {
            assert!(published(base, "chat", with));
            assert!(!published(base, "chat", without));
        }
        assert!(!published("https://gw.example/a/bb", "chat", with));
        assert!(!published("https://gw.example/a", "chat", with));
    }

    #[test]
    fn with_a_public_url_the_dialled_host_chooses_nothing() {
        let context = AudienceContext {
            public_urls: &urls(&["https://gw.example/wps"]),
            host: Some("10.0.0.7:8080"),
            hub: "chat",
        };
        assert!(context.accepts("https://gw.example/wps/client/hubs/chat"));
        for path in ["/wps/client/hubs/chat", "/client/hubs/chat", "/other/client/hubs/chat"] {
            assert!(!context.accepts(&format!("http://10.0.0.7:8080{path}")), "{path}");
        }
    }

    #[test]
    fn each_public_url_is_tried() {
        let context = AudienceContext {
            public_urls: &urls(&["https://a.example", "http://b.example:8080"]),
            host: Some("internal"),
            hub: "chat",
        };
        assert!(context.accepts("https://a.example/client/hubs/chat"));
        assert!(context.accepts("http://b.example:8080/client/hubs/chat"));
        assert!(!context.accepts("https://c.example/client/hubs/chat"));
    }

    #[test]
    fn what_is_wanted_is_accepted_and_neither_a_query_nor_a_user_of_the_host_header_is_told() {
        let both = urls(&["https://a.example/wps/", "http://b.example:8080"]);
        for (public_urls, host, hub, wanted) in [
            (&[][..], Some("127.0.0.1:7080"), "chat", "http://127.0.0.1:7080/client/hubs/chat"),
            (&[], Some("GW.example:443"), "a[1],b`", "http://gw.example:443/client/hubs/a[1],b%60"),
            (&both[..1], Some("inner"), "Chat", "https://a.example/wps/client/hubs/Chat"),
        ] {
            let context = AudienceContext { public_urls, host, hub };
            assert_eq!(context.wanted().to_string(), wanted);
            assert!(context.accepts(wanted), "{wanted}");
        }
        let context = AudienceContext { public_urls: &both, host: None, hub: "chat" };
        assert_eq!(
            context.wanted().to_string(),
            "https://a.example/wps/client/hubs/chat or http://b.example:8080/client/hubs/chat"
        );
        for host in [Some("u:secret@gw.example"), Some("gw.example/?secret"), Some("a\nsecret b"), None] {
            let wanted = AudienceContext { public_urls: &[], host, hub: "chat" }.wanted().to_string();
            assert!(!wanted.contains("secret") && wanted.contains("names no host"), "{wanted}");
        }
    }

    #[test]
    fn a_host_header_is_only_a_host() {
        let audience = "http://gw.example/client/hubs/chat";
        for host in [
            "gw.example/",
            "gw.example/x",
            "u@gw.example",
            "gw.example?x",
            "gw.example#x",
            "",
            "gw.example:x",
        ] {
            assert!(!dialled(host, "chat", audience), "{host}");
        }
        assert!(!AudienceContext { public_urls: &[], host: None, hub: "chat" }.accepts(audience));
    }
}
