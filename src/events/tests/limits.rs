//! How much, how long and how many at once.

use axum::body::Body;
use futures_util::stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

use super::super::memory::ANSWER_BYTES_MAX;
use super::*;
use crate::engine::{ConnectRefused, EventError, EventHandlers, Handled};

#[tokio::test]
async fn an_answer_is_bounded_also_when_it_does_not_say_how_long_it_is() {
    for (bytes, is_told, expected) in [
        (ANSWER_BYTES_MAX, true, true),
        (ANSWER_BYTES_MAX, false, true),
        (ANSWER_BYTES_MAX + 1, true, false),
        (ANSWER_BYTES_MAX + 1, false, false),
    ] {
        let application = Application::start(move |_| {
            let body = Bytes::from(vec![b'x'; bytes]);
            Response::new(if is_told {
                Body::from(body)
            } else {
                let chunk = |at: usize| body.slice(at..(at + 1024 * 1024).min(bytes));
                let chunks: Vec<_> =
                    (0..bytes).step_by(1024 * 1024).map(|at| Ok::<_, std::io::Error>(chunk(at))).collect();
                Body::from_stream(stream::iter(chunks))
            })
        })
        .await;
        let handlers = application.handlers("retry_after_seconds = [0]");
        let outcome = handlers.user_event(&hub(), user_event("c", "hi")).await;
        let got = outcome.map(|handled| handled.reply.unwrap().payload.bytes.len());
        assert_eq!(got, if expected { Ok(bytes) } else { Err(EventError::Failed) }, "{bytes} {is_told}");
        assert_eq!(application.events().len(), 1);
    }
}

#[tokio::test]
async fn headers_are_bounded() {
    for (bytes, expected) in [(8 * 1024, true), (8 * 1024 + 1, false), (100 * 1024, false)] {
        let application = Application::start(move |_| {
            Response::builder().header("ce-connectionState", "s".repeat(bytes)).body(Body::empty()).unwrap()
        })
        .await;
        let handlers = application.handlers("retry_after_seconds = []");
        let outcome = handlers.user_event(&hub(), user_event("c", "hi")).await;
        assert_eq!(outcome.is_ok(), expected, "{bytes}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_has_so_much_time_in_all_and_no_other_attempt_after_it() {
    // It answers the head at once, and never finishes the body.
    let never_ends = || {
        let begun = stream::once(async { Ok::<_, std::io::Error>(Bytes::from_static(b"x")) });
        Response::new(Body::from_stream(futures_util::StreamExt::chain(begun, stream::pending())))
    };
    let application = Application::start(move |_| never_ends()).await;
    let handlers = application.handlers("timeout_seconds = 7");
    let start = tokio::time::Instant::now();
    assert_eq!(handlers.user_event(&hub(), user_event("c", "hi")).await, Err(EventError::Failed));
    assert_eq!(start.elapsed().as_secs(), 7);
    assert_eq!(application.events().len(), 1);
    let silent = Application::serve(|seen| match seen.method {
        Method::OPTIONS => std::future::ready(leave().into_response()).boxed(),
        _ => std::future::pending().boxed(),
    })
    .await;
    let start = tokio::time::Instant::now();
    let outcome = silent.handlers("timeout_seconds = 9").connect(connecting("c")).await;
    assert_eq!((outcome, start.elapsed().as_secs()), (Err(ConnectRefused::Failed), 9));
    assert_eq!(silent.events().len(), 1);
}

#[tokio::test]
async fn so_many_events_are_under_way_and_no_more() {
    let turns = Arc::new(Semaphore::new(0));
    let wait = Arc::clone(&turns);
    let application = Application::serve(move |seen| {
        let wait = Arc::clone(&wait);
        async move {
            match seen.method {
                Method::OPTIONS => leave().into_response(),
                _ => {
                    wait.acquire().await.unwrap().forget();
                    status(204)
                }
            }
        }
        .boxed()
    })
    .await;
    let handlers = application.handlers("requests_max = 2");
    let first = tokio::spawn(handlers.user_event(&hub(), user_event("a", "hi")));
    let second = tokio::spawn(handlers.connect(connecting("b")));
    assert_eq!(handlers.user_event(&hub(), user_event("c", "hi")).await, Err(EventError::Busy));
    assert_eq!(handlers.connect(connecting("c")).await, Err(ConnectRefused::Busy));
    turns.add_permits(2);
    assert_eq!(first.await.unwrap(), Ok(Handled::default()));
    assert!(second.await.unwrap().is_ok());
    turns.add_permits(1);
    assert_eq!(handlers.user_event(&hub(), user_event("c", "hi")).await, Ok(Handled::default()));
}

#[tokio::test]
async fn an_answer_may_come_before_the_event_was_read() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let application = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
        let mut rest = vec![0; 1024 * 1024];
        stream.read_exact(&mut rest).await.unwrap();
    });
    let handlers = events(&handler(address, "abuse_protection = false\nretry_after_seconds = []"));
    let large = user_event("c", &"x".repeat(1024 * 1024));
    let handled = handlers.user_event(&hub(), large).await.unwrap();
    assert_eq!(handled.reply.unwrap().payload.bytes, "ok");
    drop(application);
}

#[tokio::test]
async fn a_lost_connection_is_another_attempt() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        for attempt in 0.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut some = [0; 1024];
            let _ = stream.read(&mut some).await.unwrap();
            if attempt == 2 {
                stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
                std::future::pending::<()>().await;
            }
        }
    });
    let handlers = events(&handler(address, "abuse_protection = false\nretry_after_seconds = [0, 0]"));
    assert_eq!(handlers.user_event(&hub(), user_event("c", "hi")).await, Ok(Handled::default()));
}
