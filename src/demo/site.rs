//! Which requests come from the page itself.
//!
//! A page of another site can make a browser send requests to this one. It can't set their `Host` and `Origin` as it
//! likes: `Origin` names the page's own site, and a name that it has resolve to this gateway's address (DNS rebinding)
//! stands in `Host`. So requests are answered under hosts that are known to be this gateway's, and those that change
//! something only with this site's origin.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use url::{Host, Url};

use super::refusal::Refusal;
use crate::auth;
use crate::config::Scheme;

/// Where the page may be reached.
pub(super) struct Site {
    public_urls: Vec<Url>,
}

/// The URL under which the page was reached: scheme, host and perhaps a path before its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reached(pub Url);

/// Lets requests pass that come from the page, and tells them where it was [reached](Reached).
pub(super) async fn check(State(site): State<Arc<Site>>, mut request: Request, next: Next) -> Response {
    // The listener's word, not a header's. Those that are not there, in tests, would be in the clear.
    let scheme = request.extensions().get::<Scheme>().copied().unwrap_or(Scheme::Http);
    match site.reached(scheme, request.method(), request.headers()) {
        Ok(reached) => {
            request.extensions_mut().insert(reached);
            next.run(request).await
        }
        Err(refusal) => refusal.into_response(),
    }
}

impl Site {
    pub(super) fn new(public_urls: &[Url]) -> Self {
        Self { public_urls: public_urls.to_vec() }
    }

    fn reached(&self, scheme: Scheme, method: &Method, headers: &HeaderMap) -> Result<Reached, Refusal> {
        let host = the_one(headers, &header::HOST).ok_or(Refusal::ForeignHost)?;
        let mut bases = self.bases(scheme, host).peekable();
        if bases.peek().is_none() {
            return Err(Refusal::ForeignHost);
        }
        let is_read_only = method == Method::GET || method == Method::HEAD;
        let origin = match the_one(headers, &header::ORIGIN) {
            Some(origin) => Some(origin),
            None if is_read_only => None,
            None => return Err(Refusal::ForeignOrigin),
        };
        let is_ours = |base: &Url| {
            is_read_only || origin.is_some_and(|origin| base.origin().ascii_serialization() == origin)
        };
        bases.find(is_ours).map(Reached).ok_or(Refusal::ForeignOrigin)
    }

    /// The URLs that a client may have used that sends this host: a proxy may have ended TLS for a public one.
    fn bases(&self, scheme: Scheme, host: &str) -> impl Iterator<Item = Url> {
        // A URL also takes characters that no authority has, and drops them.
        let authority = host.parse::<Authority>().ok();
        let dialled = |scheme: &str| auth::dialled(scheme, authority.as_ref()?.as_str());
        let is_dialled =
            |url: &&Url| dialled(url.scheme()).is_some_and(|dialled| dialled.origin() == url.origin());
        let public = self.public_urls.iter().filter(is_dialled).cloned().collect::<Vec<_>>();
        let loopback = dialled(&scheme.to_string()).filter(is_loopback);
        public.into_iter().chain(loopback)
    }
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// A header that is there once.
fn the_one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn reached(
        public: &[&str],
        scheme: Scheme,
        method: Method,
        sent: &[(HeaderName, &str)],
    ) -> Result<String, Refusal> {
        let public: Vec<Url> = public.iter().map(|url| url.parse().unwrap()).collect();
        let mut headers = HeaderMap::new();
        for (name, value) in sent {
            headers.append(name, HeaderValue::from_str(value).unwrap());
        }
        Site::new(&public).reached(scheme, &method, &headers).map(|Reached(url)| url.to_string())
    }

    fn read(public: &[&str], scheme: Scheme, host: &str) -> Result<String, Refusal> {
        reached(public, scheme, Method::GET, &[(header::HOST, host)])
    }

    fn change(public: &[&str], scheme: Scheme, host: &str, origin: &str) -> Result<String, Refusal> {
        reached(public, scheme, Method::POST, &[(header::HOST, host), (header::ORIGIN, origin)])
    }

    #[test]
    fn loopback_names_and_addresses_are_this_gateways_whatever_the_port() {
        for host in [
            "localhost",
            "localhost:8080",
            "LOCALHOST:1",
            "127.0.0.1:8080",
            "127.8.9.1",
            "[::1]:8080",
            "[::1]",
        ] {
            let url = read(&[], Scheme::Http, host).unwrap();
            assert_eq!(url, format!("http://{}/", host.to_lowercase()));
            assert!(read(&[], Scheme::Https, host).unwrap().starts_with("https://"));
        }
    }

    #[test]
    fn a_name_that_somebody_else_may_have_resolve_to_this_address_is_foreign() {
        for host in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "0.0.0.0:8080",
            "192.168.1.7:8080",
            "[::]:8080",
            "localhost@evil.example",
            "evil.example@localhost",
            "localhost/",
            "localhost?",
            "localhost#",
            "",
            ":8080",
        ] {
            assert_eq!(read(&[], Scheme::Http, host), Err(Refusal::ForeignHost), "{host}");
            let origin = format!("http://{host}");
            assert_eq!(change(&[], Scheme::Http, host, &origin), Err(Refusal::ForeignHost), "{host}");
        }
        assert_eq!(reached(&[], Scheme::Http, Method::GET, &[]), Err(Refusal::ForeignHost));
        let twice = [(header::HOST, "localhost"), (header::HOST, "localhost")];
        assert_eq!(reached(&[], Scheme::Http, Method::GET, &twice), Err(Refusal::ForeignHost));
    }

    #[test]
    fn a_change_needs_the_pages_own_origin() {
        let url = "http://127.0.0.1:8080/".to_owned();
        assert_eq!(change(&[], Scheme::Http, "127.0.0.1:8080", "http://127.0.0.1:8080"), Ok(url));
        for origin in [
            "http://127.0.0.1:9090",
            "http://127.0.0.1",
            "https://127.0.0.1:8080",
            "http://localhost:8080",
            "http://evil.example",
            "http://127.0.0.1:8080.evil.example",
            "http://127.0.0.1:8080/",
            "null",
            "",
        ] {
            let refused = change(&[], Scheme::Http, "127.0.0.1:8080", origin);
            assert_eq!(refused, Err(Refusal::ForeignOrigin), "{origin}");
        }
        let host = (header::HOST, "localhost");
        let missing = reached(&[], Scheme::Http, Method::POST, std::slice::from_ref(&host));
        assert_eq!(missing, Err(Refusal::ForeignOrigin));
        let own = (header::ORIGIN, "http://localhost");
        let twice = reached(&[], Scheme::Http, Method::POST, &[host, own.clone(), own]);
        assert_eq!(twice, Err(Refusal::ForeignOrigin));
    }

    #[test]
    fn over_tls_the_origin_is_that_of_the_listener() {
        let own = "https://localhost:8443";
        assert_eq!(change(&[], Scheme::Https, "localhost:8443", own), Ok(format!("{own}/")));
        let clear = change(&[], Scheme::Https, "localhost:8443", "http://localhost:8443");
        assert_eq!(clear, Err(Refusal::ForeignOrigin));
    }

    #[test]
    fn a_public_host_is_reached_by_its_own_scheme_and_path_also_behind_a_proxy() {
        let public = ["https://chat.example.com/wps", "http://other.example.com:8080"];
        let (host, origin) = ("chat.example.com", "https://chat.example.com");
        let base = Ok("https://chat.example.com/wps".to_owned());
        for scheme in [Scheme::Http, Scheme::Https] {
            assert_eq!(read(&public, scheme, host), base);
            assert_eq!(read(&public, scheme, "CHAT.example.com:443"), base);
            assert_eq!(change(&public, scheme, host, origin), base);
            let clear = change(&public, scheme, host, "http://chat.example.com");
            assert_eq!(clear, Err(Refusal::ForeignOrigin));
        }
        assert!(read(&public, Scheme::Http, "other.example.com:8080").is_ok());
        for foreign in ["other.example.com", "chat.example.com:8443", "example.com"] {
            assert_eq!(read(&public, Scheme::Http, foreign), Err(Refusal::ForeignHost), "{foreign}");
        }
        assert!(read(&public, Scheme::Http, "localhost:8080").is_ok(), "loopback as always");
    }

    #[test]
    fn of_two_public_urls_with_one_host_the_origin_tells_which() {
        let public = ["https://a.example/s", "http://a.example:443/p"];
        let by = |origin| change(&public, Scheme::Http, "a.example:443", origin);
        assert_eq!(by("https://a.example"), Ok("https://a.example/s".to_owned()));
        assert_eq!(by("http://a.example:443"), Ok("http://a.example:443/p".to_owned()));
    }
}
