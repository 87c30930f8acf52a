//! Telling that a session is over, for as long as that takes.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::engine::{EventHandlers, Handled};

#[tokio::test(start_paused = true)]
async fn attempts_go_on_until_one_is_answered_all_under_one_id() {
    let count = AtomicUsize::new(0);
    let application = Application::start(move |_| {
        status(if count.fetch_add(1, Ordering::SeqCst) < 12 { 503 } else { 200 })
    })
    .await;
    let start = tokio::time::Instant::now();
    application.handlers("").disconnected(&hub(), disconnected("c")).await;
    // 1, 3, 5, 10, 20, 40, and then each minute.
    assert!(start.elapsed().as_secs() >= 79 + 6 * 60, "{:?}", start.elapsed());
    let attempts = application.events();
    assert_eq!(attempts.len(), 13);
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

#[tokio::test(start_paused = true)]
async fn an_answer_that_would_not_change_settles_it() {
    for code in [204, 302, 400, 404, 429] {
        let application = Application::start(move |_| status(code)).await;
        application.handlers("").disconnected(&hub(), disconnected("c")).await;
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

#[tokio::test(start_paused = true)]
async fn without_a_handler_there_is_nothing_left_to_tell() {
    let application = Application::start(|_| status(503)).await;
    let handlers = application.handlers("");
    let end = tokio::spawn(handlers.disconnected(&hub(), disconnected("c")));
    eventually(|| !application.events().is_empty()).await;
    assert!(!end.is_finished());
    assert!(handlers.replace(&config("")).unwrap());
    end.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_told_is_told_to_the_handler_that_comes_instead() {
    let old = Application::start(|_| status(503)).await;
    let new = Application::start(|_| status(200)).await;
    let handlers = old.handlers("");
    let end = tokio::spawn(handlers.disconnected(&hub(), disconnected("c")));
    eventually(|| !old.events().is_empty()).await;
    handlers.replace(&config(&handler(new.address, ""))).unwrap();
    end.await.unwrap();
    assert_eq!(new.events().len(), 1);
}
