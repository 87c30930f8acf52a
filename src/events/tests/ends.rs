//! Telling that a session is over, for as long as that takes.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::engine::{EventHandlers, Handled};

#[tokio::test]
async fn an_attempt_that_may_bring_another_answer_is_made_again_under_the_same_id() {
    let count = AtomicUsize::new(0);
    let application =
        Application::start(move |_| status(if count.fetch_add(1, Ordering::SeqCst) < 2 { 503 } else { 200 }))
            .await;
    let handlers = application.handlers("");
    for is_told in [false, false, true] {
        assert_eq!(handlers.disconnected(&hub(), disconnected("c")).await, is_told);
    }
    let attempts = application.events();
    assert_eq!(attempts.len(), 3);
    for attempt in attempts {
        assert_eq!((&*attempt.path, attempt.header("ce-id")), ("/disconnected", Some("5")));
        assert_eq!(attempt.header("ce-type"), Some("azure.webpubsub.sys.disconnected"));
        assert_eq!(
            attempt.header("x-ms-client-request-id"),
            application.events()[0].header("x-ms-client-request-id")
        );
        let body: serde_json::Value = serde_json::from_slice(&attempt.body).unwrap();
        assert_eq!(body, serde_json::json!({"reason": "gone \"home\""}));
    }
}

#[tokio::test]
async fn an_answer_that_would_not_change_settles_it() {
    for code in [204, 302, 400, 404, 429] {
        let application = Application::start(move |_| status(code)).await;
        assert!(application.handlers("").disconnected(&hub(), disconnected("c")).await);
        assert_eq!(application.events().len(), 1, "{code}");
    }
}

#[tokio::test]
async fn ends_that_cannot_be_told_hold_up_nobody() {
    let application = Application::serve(|seen| match &*seen.path {
        "/validate" => std::future::ready(leave().into_response()).boxed(),
        "/disconnected" => std::future::pending().boxed(),
        _ => std::future::ready(status(204)).boxed(),
    })
    .await;
    let handlers = application.handlers("requests_max = 4");
    let ends: Vec<_> = (0..1000)
        .map(|number| tokio::spawn(handlers.disconnected(&hub(), disconnected(&number.to_string()))))
        .collect();
    eventually(|| application.events().len() == 4).await;
    for _ in 0..10 {
        assert_eq!(handlers.user_event(&hub(), user_event("c", "hi")).await, Ok(Handled::default()));
    }
    assert!(handlers.connect(connecting("d")).await.is_ok());
    let untold = application.events().iter().filter(|seen| seen.path == "/disconnected").count();
    assert_eq!(untold, 4);
    ends.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn what_could_not_be_told_is_told_to_the_handler_that_comes_instead_if_one_does() {
    let old = Application::start(|_| status(503)).await;
    let new = Application::start(|_| status(200)).await;
    let handlers = old.handlers("");
    assert!(!handlers.disconnected(&hub(), disconnected("c")).await);
    handlers.replace(&config(&handler(new.address, ""))).unwrap();
    assert!(handlers.disconnected(&hub(), disconnected("c")).await);
    assert_eq!((old.events().len(), new.events().len()), (1, 1));
    assert!(handlers.replace(&config("")).unwrap());
    assert!(handlers.disconnected(&hub(), disconnected("d")).await, "there is nothing left to tell");
}
