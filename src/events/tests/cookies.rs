//! Cookies between handlers and sessions.

use super::*;
use crate::engine::EventHandlers;

#[tokio::test]
async fn a_session_sends_back_what_its_events_were_given_and_no_other() {
    let application = Application::serve(|seen| {
        let (code, cookie) = match (&seen.method, &*seen.path) {
            (&Method::OPTIONS, _) => (200, "from=validation"),
            (_, "/connect") => (204, "node=1"),
            _ if seen.body == "fail" => (400, "from=failure"),
            _ => (204, "more=2"),
        };
        let mut response = status(code);
        let headers = response.headers_mut();
        headers.insert("set-cookie", cookie.parse().unwrap());
        headers.insert("webhook-allowed-origin", "*".parse().unwrap());
        std::future::ready(response).boxed()
    })
    .await;
    let handlers = application.handlers("");
    let sent = || application.events().pop().unwrap().header("cookie").map(str::to_owned);
    let event = async |id: &str, text: &str| drop(handlers.user_event(&hub(), user_event(id, text)).await);
    handlers.connect(connecting("a")).await.unwrap();
    assert_eq!(sent(), None);
    event("a", "fail").await;
    assert_eq!(sent().as_deref(), Some("node=1"));
    event("a", "x").await;
    assert_eq!(sent().as_deref(), Some("node=1"));
    event("b", "x").await;
    assert_eq!(sent(), None);
    event("a", "x").await;
    let all = sent().unwrap();
    let mut all: Vec<_> = all.split("; ").collect();
    all.sort_unstable();
    assert_eq!(all, ["more=2", "node=1"]);
    handlers.disconnected(&hub(), disconnected("a")).await;
    assert!(sent().is_some());
    event("a", "x").await;
    assert_eq!(sent(), None);
}
