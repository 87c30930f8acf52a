//! Events on their way to a handler, and what it makes of them.

use std::sync::atomic::{AtomicUsize, Ordering};

use oncewire_protocol::hub::Connected;
use oncewire_protocol::log::HandlerState;

use super::*;
use crate::engine::{Accepted, ConnectRefused, EventError, EventHandlers, Handled};

/// What a handler replies with to a user event.
async fn reply(handlers: &Events, event: UserEvent) -> (PayloadKind, Bytes) {
    let handled = handlers.user_event(&hub(), event).await.unwrap();
    let payload = handled.reply.unwrap().payload;
    (payload.kind, payload.bytes)
}

/// Sends back what it gets, under the same type.
fn echo(seen: &Seen) -> Response {
    let mut response = Response::new(Body::from(seen.body.clone()));
    response.headers_mut().insert("content-type", seen.headers["content-type"].clone());
    response
}

#[tokio::test]
async fn a_payload_of_each_kind_goes_out_and_comes_back() {
    let application = Application::start(echo).await;
    let handlers = application.handlers("");
    for (kind, content_type, bytes) in [
        (PayloadKind::Text, "text/plain; charset=utf-8", &b"hi \xC3\xA9"[..]),
        (PayloadKind::Json, "application/json", b"{\"a\": [1,  2]}"),
        (PayloadKind::Binary, "application/octet-stream", b"\x00\xFF"),
        (PayloadKind::Any, "application/x-protobuf", b"\x0A\x01a"),
    ] {
        let bytes = Bytes::from_static(bytes);
        let payload = Payload { kind, bytes: bytes.clone() };
        let event = UserEvent { payload, ..user_event("c", "") };
        assert_eq!(reply(&handlers, event).await, (kind, bytes));
        assert_eq!(application.events().pop().unwrap().header("content-type"), Some(content_type));
    }
}

#[tokio::test]
async fn an_answer_in_an_encoding_that_is_not_read_was_passed_on_and_its_event_is_not_sent_again() {
    let application = Application::start(|_| {
        Response::builder().header("content-encoding", "br").body(Body::from("compressed")).unwrap()
    })
    .await;
    let handlers = application.handlers("retry_after_seconds = [0, 0]");
    assert_eq!(handlers.user_event(&hub(), user_event("c", "hi")).await, Err(EventError::Failed));
    assert_eq!(application.events().len(), 1);
    // One with nothing in it has no encoding.
    let application = Application::start(|_| {
        Response::builder().status(204).header("content-encoding", "br").body(Body::empty()).unwrap()
    })
    .await;
    let handlers = application.handlers("");
    assert_eq!(handlers.user_event(&hub(), user_event("c", "hi")).await, Ok(Handled::default()));
}

#[tokio::test]
async fn a_request_has_what_the_reference_says_and_the_url_of_the_template() {
    let application = Application::start(|_| status(204)).await;
    // Cargo sets the variable for its tests.
    let handlers = events(&format!(
        "[[hubs.Chat.event_handlers]]\nurl_template = \"http://{}/hooks/{{hub}}/{{event}}?code=s3\"\n\
         user_event_pattern = \"MESSAGE\"\nbearer_token = \"{{env:CARGO_PKG_NAME}}\"",
        application.address
    ));
    let mut event = user_event("conn-1", "hi");
    event.subject.identity.user_id = Some(UserId::new("Zoë"));
    event.subject.state = Some(HandlerState(Bytes::from_static(b"e30=")));
    event.event = EventName::new("Message").unwrap();
    event.metadata = Metadata::new([("Trace", "a, b")]).unwrap();
    assert_eq!(handlers.user_event(&hub(), event).await, Ok(Handled::default()));
    let [seen] = &*application.events() else { panic!("one event") };
    assert_eq!((&*seen.path, &seen.body[..]), ("/hooks/chat/Message?code=s3", &b"hi"[..]));
    for (name, value) in [
        ("ce-type", "azure.webpubsub.user.Message"),
        ("ce-source", "/hubs/chat/client/conn-1"),
        ("ce-id", "1000000000000001"),
        ("ce-awpsversion", "1.0"),
        ("ce-connectionState", "e30="),
        ("webhook-request-origin", "gateway.example.net"),
        ("x-webpubsub-metadata-trace", "a, b"),
        ("authorization", "Bearer oncewire"),
        ("host", &application.address.to_string()),
    ] {
        assert_eq!(seen.header(name), Some(value), "{name}");
    }
    assert_eq!(seen.headers["ce-userId"].as_bytes(), "Zoë".as_bytes());
    let signature = AccessKeys::new(KEY, None).unwrap().event_signature("conn-1");
    assert_eq!(seen.header("ce-signature"), Some(signature.as_str()));
    let [asked] = &*application.with_method(&Method::OPTIONS) else { panic!("one question") };
    assert_eq!(asked.path, "/hooks/chat/validate?code=s3");
    for name in ["ce-signature", "authorization", "cookie", "ce-id", "content-type"] {
        assert_eq!(asked.header(name), None, "{name}");
    }
}

#[tokio::test]
async fn what_a_handler_notes_comes_back_with_its_metadata() {
    let application = Application::start(|_| {
        let headers = [
            ("ce-connectionState", "first"),
            ("ce-connectionState", "last"),
            ("x-webpubsub-metadata-k", "a, b"),
        ];
        let mut response = Response::builder();
        for (name, value) in headers {
            response = response.header(name, value);
        }
        response.body(Body::empty()).unwrap()
    })
    .await;
    let handled = application.handlers("").user_event(&hub(), user_event("c", "hi")).await.unwrap();
    assert_eq!(handled.state, Some(HandlerState(Bytes::from_static(b"last"))));
    let reply = handled.reply.unwrap();
    assert_eq!((reply.payload.kind, reply.payload.bytes.len()), (PayloadKind::Text, 0));
    assert_eq!(reply.metadata.iter().collect::<Vec<_>>(), [("k", "a, b")]);
}

#[tokio::test]
async fn a_failed_attempt_is_repeated_as_it_was_and_answered_once() {
    let count = AtomicUsize::new(0);
    let application = Application::start(move |seen| match count.fetch_add(1, Ordering::SeqCst) {
        0 => status(503),
        1 => status(408),
        _ => echo(seen),
    })
    .await;
    let handlers = application.handlers("retry_after_seconds = [0, 0, 0]");
    let answer = reply(&handlers, user_event("c", "hi")).await;
    assert_eq!(answer, (PayloadKind::Text, Bytes::from_static(b"hi")));
    let attempts = application.events();
    assert_eq!(attempts.len(), 3);
    for attempt in &attempts {
        assert_eq!((&attempt.headers, &attempt.body), (&attempts[0].headers, &attempts[0].body));
        assert!(attempt.header("ce-id").is_some() && attempt.header("x-ms-client-request-id").is_some());
    }
}

#[tokio::test]
async fn other_answers_are_failures_at_once() {
    for code in [429, 404, 401, 304, 302] {
        let application = Application::start(move |seen| match &*seen.path {
            "/message" => {
                let mut response = status(code);
                response.headers_mut().insert("location", "/elsewhere".parse().unwrap());
                response
            }
            _ => status(200),
        })
        .await;
        let handlers = application.handlers("retry_after_seconds = [0, 0, 0]");
        let answer = handlers.user_event(&hub(), user_event("c", "hi")).await;
        assert_eq!(answer, Err(EventError::Failed), "{code}");
        let paths: Vec<_> = application.events().into_iter().map(|seen| seen.path).collect();
        assert_eq!(paths, ["/message"], "{code}");
        assert_eq!(application.with_method(&Method::GET).len(), 0);
    }
}

#[tokio::test]
async fn a_handler_that_is_not_there_fails_after_its_attempts() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let keys = "retry_after_seconds = [0, 0]\nabuse_protection = false";
    let handlers = events(&handler(address, keys));
    assert_eq!(handlers.user_event(&hub(), user_event("c", "hi")).await, Err(EventError::Failed));
    assert_eq!(handlers.connect(connecting("c")).await, Err(ConnectRefused::Failed));
}

#[tokio::test]
async fn what_no_header_can_hold_is_not_sent() {
    let application = Application::start(|_| status(204)).await;
    let handlers = application.handlers("");
    let mut event = user_event("c", "hi");
    event.subject.identity.user_id = Some(UserId::new("ann\r\nce-hub: other"));
    assert_eq!(handlers.user_event(&hub(), event).await, Err(EventError::Failed));
    let mut event = user_event("c", "hi");
    event.subject.identity.custom_subprotocol = Some("é".to_owned());
    assert_eq!(handlers.user_event(&hub(), event).await, Err(EventError::Failed));
    let mut end = disconnected("c");
    end.subject.identity.custom_subprotocol = Some("é".to_owned());
    handlers.disconnected(&hub(), end).await;
    assert_eq!(application.events().len(), 0);
}

#[tokio::test]
async fn each_event_goes_to_the_first_handler_that_takes_it() {
    let application = Application::start(|seen| {
        Response::builder().header("content-type", "text/plain").body(Body::from(seen.path.clone())).unwrap()
    })
    .await;
    let section = |path: &str, keys: &str| {
        let url = format!("http://{}/{path}", application.address);
        format!("[[hubs.chat.event_handlers]]\nurl_template = \"{url}\"\n{keys}\n")
    };
    let handlers = events(&format!(
        "{}{}{}",
        section("first", "user_event_pattern = \"a, b\"\nsystem_events = [\"connect\"]"),
        section("second", "user_event_pattern = \"B,c\""),
        section("third", "system_events = [\"disconnected\", \"connect\"]"),
    ));
    for (name, path) in [("a", "/first"), ("B", "/first"), ("C", "/second")] {
        let event = UserEvent { event: EventName::new(name).unwrap(), ..user_event("c", "") };
        assert_eq!(reply(&handlers, event).await, (PayloadKind::Text, Bytes::from_static(path.as_bytes())));
    }
    let event = UserEvent { event: EventName::new("d").unwrap(), ..user_event("c", "") };
    assert_eq!(handlers.user_event(&hub(), event).await, Err(EventError::NoHandler));
    assert!(handlers.takes_connect(&hub()) && handlers.takes_disconnected(&hub()));
    handlers.disconnected(&hub(), disconnected("c")).await;
    assert_eq!(application.events().pop().unwrap().path, "/third");
    let other = HubName::new("other").unwrap();
    assert!(!handlers.takes_connect(&other) && !handlers.takes_disconnected(&other));
    assert_eq!(handlers.user_event(&other, user_event("c", "")).await, Err(EventError::NoHandler));
    handlers.disconnected(&other, disconnected("c")).await;
    let as_it_is = handlers.connect(Connecting { hub: other, ..connecting("c") }).await.unwrap();
    assert_eq!((as_it_is.user_id, as_it_is.roles), (Some(UserId::new("ann")), connecting("c").roles));
}

#[tokio::test]
async fn a_handler_accepts_a_client_as_somebody() {
    let application = Application::start(|_| {
        let body = r#"{"userId":"bob","roles":[],"groups":["g"],"subprotocol":"mine"}"#;
        Response::builder().header("ce-connectionState", "s").body(Body::from(body)).unwrap()
    })
    .await;
    let accepted = application.handlers("").connect(connecting("conn-1")).await;
    let expected = Accepted {
        user_id: Some(UserId::new("bob")),
        roles: Vec::new(),
        groups: vec![GroupName::new("g").unwrap()],
        subprotocol: Some("mine".to_owned()),
        state: Some(HandlerState(Bytes::from_static(b"s"))),
    };
    assert_eq!(accepted, Ok(expected));
    let [seen] = &*application.events() else { panic!("one event") };
    assert_eq!(seen.header("ce-type"), Some("azure.webpubsub.sys.connect"));
    assert_eq!(seen.header("ce-id"), Some("0"));
    assert_eq!(seen.header("content-type"), Some("application/json"));
    assert!(seen.header("ce-subprotocol").is_none() && seen.header("ce-connectionState").is_none());
    let body: serde_json::Value = serde_json::from_slice(&seen.body).unwrap();
    assert_eq!(body["claims"], serde_json::json!({"sub": ["ann"]}));
}

#[tokio::test]
async fn a_refused_client_gets_the_handlers_status() {
    for (code, expected) in [
        (403, ConnectRefused::ByHandler(403)),
        (401, ConnectRefused::ByHandler(401)),
        (429, ConnectRefused::ByHandler(429)),
        (408, ConnectRefused::FailedWith(408)),
        (503, ConnectRefused::FailedWith(503)),
        (302, ConnectRefused::Failed),
    ] {
        let application = Application::start(move |_| status(code)).await;
        let handlers = application.handlers("retry_after_seconds = [0]");
        assert_eq!(handlers.connect(connecting("c")).await, Err(expected));
        assert_eq!(application.events().len(), if [408, 503].contains(&code) { 2 } else { 1 }, "{code}");
    }
    let application = Application::start(|_| Response::new(Body::from("{"))).await;
    assert_eq!(application.handlers("").connect(connecting("c")).await, Err(ConnectRefused::Failed));
}

#[tokio::test]
async fn a_handler_is_told_that_a_session_has_begun() {
    let application = Application::start(|_| status(200)).await;
    let connected = Connected { subject: subject("c"), id: EventId::Counted(1), time: Time(0) };
    application.handlers("").connected(&hub(), connected);
    eventually(|| application.events().len() == 1).await;
    let seen = application.events().pop().unwrap();
    assert_eq!((&*seen.path, &seen.body[..]), ("/connected", &b"{}"[..]));
    assert_eq!(seen.header("ce-type"), Some("azure.webpubsub.sys.connected"));
    assert_eq!(seen.header("ce-id"), Some("1"));
    assert_eq!(seen.header("content-type"), Some("application/json"));
}
