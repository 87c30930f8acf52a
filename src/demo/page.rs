//! The built files of `web-demo`, which are part of the program.

use axum::Router;
use axum::extract::{Extension, OriginalUri};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rust_embed::{Embed, EmbeddedFile};
use url::Url;

use super::site::Reached;

/// What the page is built into.
#[derive(Embed)]
#[folder = "web-demo/dist"]
struct Files;

const INDEX: &str = "index.html";
/// Names in here change with what is in the files.
const HASHED: &str = "assets/";

/// Each file under its name, and the page itself at `/`.
pub(super) fn router() -> Router {
    Files::iter().fold(Router::new(), |router, name| {
        let path = if name == INDEX { "/".to_owned() } else { format!("/{name}") };
        let serve = async move |Extension(Reached(base)): Extension<Reached>,
                                OriginalUri(uri),
                                headers: HeaderMap| {
            if name == INDEX && !uri.path().ends_with('/') {
                // The page asks for everything else by names that begin where it is.
                return Redirect::permanent(&format!("{}/", uri.path())).into_response();
            }
            match Files::get(&name) {
                Some(file) => respond(&name, file, &base, &headers),
                None => StatusCode::NOT_FOUND.into_response(),
            }
        };
        router.route(&path, get(serve))
    })
}

fn respond(name: &str, file: EmbeddedFile, base: &Url, asked: &HeaderMap) -> Response {
    let tag = format!("\"{}\"", URL_SAFE_NO_PAD.encode(file.metadata.sha256_hash()));
    let is_known = asked.get_all(IF_NONE_MATCH).iter().any(|known| known.as_bytes() == tag.as_bytes());
    let headers = [
        (CONTENT_TYPE, content_type(file.metadata.mimetype())),
        (CACHE_CONTROL, cache_control(name).to_owned()),
        (ETAG, tag),
        (CONTENT_SECURITY_POLICY, content_security_policy(base)),
        (X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (REFERRER_POLICY, "no-referrer".to_owned()),
    ];
    let headers: HeaderMap = headers.into_iter().filter_map(header).collect();
    if is_known {
        (StatusCode::NOT_MODIFIED, headers).into_response()
    } else {
        (headers, file.data).into_response()
    }
}

/// All values come from the build and from URLs, which have no control characters.
fn header((name, value): (HeaderName, String)) -> Option<(HeaderName, HeaderValue)> {
    Some((name, HeaderValue::try_from(value).ok()?))
}

fn content_type(mime: &str) -> String {
    if mime.starts_with("text/") { format!("{mime}; charset=utf-8") } else { mime.to_owned() }
}

fn cache_control(name: &str) -> &'static str {
    if name.starts_with(HASHED) { "public, max-age=31536000, immutable" } else { "no-cache" }
}

/// Nothing but the page's own files, and sockets to this gateway: not every browser counts those as its own origin.
fn content_security_policy(base: &Url) -> String {
    let scheme = if base.scheme() == "https" { "wss" } else { "ws" };
    let authority = &base[url::Position::BeforeHost..url::Position::AfterPort];
    format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; \
         connect-src 'self' {scheme}://{authority}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_with_a_hash_in_their_name_are_kept_for_good() {
        for name in ["assets/index-B2x9.js", "assets/deep/x-1.css"] {
            assert!(cache_control(name).contains("immutable"), "{name}");
        }
        for name in ["index.html", "favicon.svg", "x/assets/y.js"] {
            assert_eq!(cache_control(name), "no-cache", "{name}");
        }
    }

    #[test]
    fn text_names_its_encoding() {
        assert_eq!(content_type("text/javascript"), "text/javascript; charset=utf-8");
        assert_eq!(content_type("image/svg+xml"), "image/svg+xml");
    }

    #[test]
    fn the_policy_allows_sockets_to_where_the_page_was_reached() {
        for (base, sockets) in [
            ("http://127.0.0.1:8080/", " ws://127.0.0.1:8080;"),
            ("https://[::1]:8443", " wss://[::1]:8443;"),
            ("https://chat.example.com/wps", " wss://chat.example.com;"),
        ] {
            let policy = content_security_policy(&base.parse().unwrap());
            assert!(policy.contains(sockets), "{policy}");
            assert!(!policy.contains("unsafe") && policy.starts_with("default-src 'none'"), "{policy}");
        }
    }
}
