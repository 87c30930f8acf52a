//! What is said where nothing is: each refusal has a text, so that whoever reads it knows what to change.

use std::net::SocketAddr;

use axum::body::{Body, HttpBody as _};
use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use super::listener::Peer;

/// So much of a path stands in the log.
const PATH_CHARS_MAX: usize = 256;

/// Answers a request for a path that has no route.
pub(super) async fn nothing_there(request: Request) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    let reason = reason(path);
    let peer: Option<SocketAddr> = request.extensions().get().map(|Peer(peer)| *peer);
    let path: String = path.chars().take(PATH_CHARS_MAX).collect();
    tracing::debug!(%method, path, peer = peer.map(tracing::field::display), status = 404, reason, "nothing there");
    (StatusCode::NOT_FOUND, reason).into_response()
}

/// What is not there. Behind a public URL's path a proxy may have left that in front.
fn reason(path: &str) -> &'static str {
    let path = path.to_ascii_lowercase();
    match () {
        () if path.contains("/clients/mqtt/") => {
            "MQTT clients are not served here: this gateway speaks the Web PubSub protocols only."
        }
        () if path.contains("/clients/socketio/") => {
            "Socket.IO clients are not served here: this gateway speaks the Web PubSub protocols only."
        }
        () if path.contains("/server/tunnel") => {
            "Tunnels are not served here: event handlers are called by HTTP, at their own URL."
        }
        () if path.contains("/client/") => {
            "There is nothing at this path: clients connect to /client/hubs/{hub}."
        }
        () if path.contains("/api/") || path.ends_with("/api") => {
            "There is nothing at this path: the REST API is at /api/hubs/{hub}."
        }
        () => "There is nothing at this path.",
    }
}

/// Gives an answer that tells of a failure a text, if it has none.
pub(super) async fn with_text(response: Response) -> Response {
    let status = response.status();
    let is_failure = status.is_client_error() || status.is_server_error();
    if !is_failure || response.body().size_hint().exact() != Some(0) {
        return response;
    }
    let text = match status {
        StatusCode::METHOD_NOT_ALLOWED => "The method is not allowed here.",
        StatusCode::SERVICE_UNAVAILABLE => "The gateway is too busy now. The request may be sent again.",
        status => status.canonical_reason().unwrap_or("The request failed."),
    };
    let (mut head, _) = response.into_parts();
    head.headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    Response::from_parts(head, Body::from(text))
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::http::Request;
    use axum::middleware::map_response;
    use axum::routing::get;
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;

    async fn ask(method: &str, path: &str) -> (u16, String) {
        let routes = Router::new()
            .route("/there", get(async || "here"))
            .route("/full", get(async || StatusCode::SERVICE_UNAVAILABLE))
            .route("/said", get(async || (StatusCode::CONFLICT, "said")));
        let routes = Router::new().nest("/wps", routes.clone()).merge(routes);
        let router = routes.fallback(nothing_there).layer(map_response(with_text));
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        let response = router.oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_path_without_a_route_is_answered_by_what_is_not_there() {
        for (path, said) in [
            ("/clients/mqtt/hubs/chat", "MQTT"),
            ("/wps/clients/socketio/hubs/chat?EIO=4", "Socket.IO"),
            ("/server/tunnel?hub=chat", "Tunnels"),
            ("/client/hub/chat", "/client/hubs/{hub}"),
            ("/wps/other", "nothing at this path"),
            ("/", "nothing at this path"),
        ] {
            let (status, text) = ask("GET", path).await;
            assert!(status == 404 && text.contains(said), "{path}: {status} {text}");
        }
    }

    #[tokio::test]
    async fn no_failure_is_without_a_text_and_what_was_said_stays() {
        assert_eq!(ask("GET", "/wps/there").await, (200, "here".to_owned()));
        assert_eq!(ask("POST", "/there").await, (405, "The method is not allowed here.".to_owned()));
        let (status, text) = ask("GET", "/full").await;
        assert!(status == 503 && text.contains("may be sent again"), "{text}");
        assert_eq!(ask("GET", "/said").await, (409, "said".to_owned()));
    }
}
