//! Asking a real server whether it wants events.

use futures_util::future::join_all;

use super::*;
use crate::engine::{ConnectRefused, EventError, EventHandlers, Handled};

/// Asks a handler that answers questions in this way, and lets an event go; gives the methods that it saw.
async fn asked(
    keys: &str,
    answer: impl Fn(&Seen) -> Response + Send + Sync + 'static,
) -> (Result<Handled, EventError>, Vec<Method>) {
    let application = Application::serve(move |seen| {
        let response = if seen.method == Method::POST { status(204) } else { answer(&seen) };
        std::future::ready(response).boxed()
    })
    .await;
    let outcome = application.handlers(keys).user_event(&hub(), user_event("c", "hi")).await;
    (outcome, application.seen.lock().iter().map(|seen| seen.method.clone()).collect())
}

fn allowed(lines: &[&str]) -> Response {
    let mut response = status(200);
    for line in lines {
        response.headers_mut().append("webhook-allowed-origin", line.parse().unwrap());
    }
    response
}

const OPTIONS: Method = Method::OPTIONS;
const GET: Method = Method::GET;
const POST: Method = Method::POST;

#[tokio::test]
async fn a_hundred_first_events_are_let_go_after_one_question() {
    let application = Application::start(|_| status(204)).await;
    let handlers = application.handlers("");
    let all = (0..100).map(|number| handlers.user_event(&hub(), user_event(&number.to_string(), "hi")));
    for outcome in join_all(all).await {
        assert_eq!(outcome, Ok(Handled::default()));
    }
    assert_eq!(application.with_method(&OPTIONS).len(), 1);
    assert_eq!(application.events().len(), 100);
}

#[tokio::test]
async fn get_is_asked_where_options_is_not_found_and_only_then() {
    let answer = |seen: &Seen| if seen.method == Method::GET { allowed(&["*"]) } else { status(404) };
    assert_eq!(asked("", answer).await, (Ok(Handled::default()), vec![OPTIONS, GET, POST]));
    assert_eq!(asked("", |_| status(404)).await, (Err(EventError::Failed), vec![OPTIONS, GET]));
    for code in [405, 401, 302, 400] {
        assert_eq!(
            asked("", move |_| status(code)).await,
            (Err(EventError::Failed), vec![OPTIONS]),
            "{code}"
        );
    }
    let keys = "retry_after_seconds = [0, 0]";
    let tried = vec![OPTIONS, OPTIONS, OPTIONS];
    assert_eq!(asked(keys, |_| status(500)).await, (Err(EventError::Failed), tried));
}

#[tokio::test]
async fn the_gateways_host_is_named_on_one_of_several_lines() {
    let let_go = (Ok(Handled::default()), vec![OPTIONS, POST]);
    let stopped = (Err(EventError::Failed), vec![OPTIONS]);
    for lines in [&["other.example", "gateway.example.net"][..], &["GATEWAY.example.net:8443"], &["a, *"]] {
        assert_eq!(asked("", move |_| allowed(lines)).await, let_go, "{lines:?}");
    }
    for lines in [&["other.example"][..], &[]] {
        assert_eq!(asked("", move |_| allowed(lines)).await, stopped, "{lines:?}");
    }
    assert_eq!(
        asked("abuse_protection = false", |_| status(500)).await,
        (Ok(Handled::default()), vec![POST])
    );
}

#[tokio::test]
async fn a_handler_that_gives_no_leave_is_sent_no_event() {
    let application = Application::serve(|_| std::future::ready(status(403)).boxed()).await;
    let handlers = application.handlers("");
    assert_eq!(handlers.connect(connecting("c")).await, Err(ConnectRefused::Failed));
    assert_eq!(handlers.user_event(&hub(), user_event("c", "hi")).await, Err(EventError::Failed));
    assert_eq!(application.events().len(), 0);
}
