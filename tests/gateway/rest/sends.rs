//! Sends: who gets what, in which form.

use super::*;

#[tokio::test]
async fn a_message_goes_to_all_a_group_a_user_or_a_connection() {
    for gateway in [Gateway::start().await, Gateway::sharded().await] {
        let mut ann = gateway.session(RELIABLE, &Token::user("ann").group("ops")).await;
        let mut other_ann = gateway.json("ann").await;
        let mut bob = gateway.session(RELIABLE, &Token::user("b/o b").group("ops")).await;
        send_text(&gateway, ":send", "all").await;
        send_text(&gateway, "groups/ops/:send", "group").await;
        send_text(&gateway, "users/ann/:send", "user").await;
        send_text(&gateway, "users/b%2Fo%20b/:send", "other").await;
        send_text(&gateway, &format!("connections/{}/:send", id_of(&ann)), "connection").await;
        assert_eq!(texts(&mut ann).await, ["all", "group", "user", "connection"]);
        assert_eq!(texts(&mut other_ann).await, ["all", "user"]);
        assert_eq!(texts(&mut bob).await, ["all", "group", "other"]);
    }
}

#[tokio::test]
async fn nobody_there_is_accepted_too() {
    let gateway = Gateway::start().await;
    for path in [":send", "groups/none/:send", "users/none/:send", "connections/none/:send"] {
        send_text(&gateway, path, "to nobody").await;
    }
    let late = gateway.reliable("late").await.settle().await;
    assert_eq!(late, [] as [Value; 0], "nothing is kept for those who come later");
}

#[tokio::test]
async fn each_kind_of_client_gets_each_kind_of_data() {
    let gateway = Gateway::start().await;
    let group = Token::bare().group("g");
    let mut json_client = gateway.session(JSON, &group).await;
    let mut reliable = gateway.session(RELIABLE, &group).await;
    let mut raw = gateway.raw(&group).await;
    let mut protobuf = gateway.protobuf(PROTOBUF, &group).await;
    let cases: [(&[&str], &str, Value, Bare, u8); 5] = [
        (&["text/plain"], "h\u{e9}llo", json!({"dataType": "text", "data": "héllo"}), Bare::text("héllo"), 1),
        (
            &["application/json"],
            "{\"n\": 1.0}",
            json!({"dataType": "json", "data": {"n": 1.0}}),
            Bare::text("{\"n\": 1.0}"),
            4,
        ),
        (&["application/json"], "null", json!({"dataType": "json", "data": null}), Bare::text("null"), 4),
        (
            &["application/octet-stream"],
            "\u{1}\u{2}",
            json!({"dataType": "binary", "data": "AQI="}),
            Bare::binary(&[1, 2]),
            2,
        ),
        (&[], "\u{1}\u{2}", json!({"dataType": "binary", "data": "AQI="}), Bare::binary(&[1, 2]), 2),
    ];
    for (number, (content_type, body, data, bare, field)) in (1..).zip(cases) {
        let mut ask = call(&gateway, "POST", "groups/g/:send");
        for content_type in content_type {
            ask = ask.header("content-type", content_type);
        }
        assert_eq!(ask.body(body).send().await.status, 202);
        let mut expected = data;
        expected["type"] = json!("message");
        expected["from"] = json!("group");
        expected["group"] = json!("g");
        json_client.expect(expected.clone()).await;
        expected["sequenceId"] = json!(number);
        reliable.expect(expected).await;
        raw.expect_bare(bare).await;
        let Bare::Binary(frame) = protobuf.read_bare().await else { panic!("no binary frame") };
        // The data stands behind the sender and the group, in a field of its kind.
        let data_at = frame.windows(3).position(|three| three == [0x12, 1, b'g']).map_or(0, |at| at);
        assert!(frame[data_at..].contains(&(field << 3 | 2)), "{frame:?}");
    }
}

#[tokio::test]
async fn headers_with_nothing_in_them_were_not_taken_for_headers_that_are_not_there() {
    let gateway = Gateway::start().await;
    let mut raw = gateway.raw(&Token::bare().group("g")).await;
    // So the server SDK of Java sends bytes.
    let mut ask =
        call(&gateway, "POST", ":send").header("content-type", "").header("x-ms-client-request-id", "");
    for name in ["repeatability-request-id", "repeatability-first-sent", "repeatability-client-id"] {
        ask = ask.header(name, "");
    }
    for _ in 0..2 {
        let answer = ask.clone().body("\u{1}\u{2}").send().await;
        assert_eq!(answer.status, 202);
        raw.expect_bare(Bare::binary(&[1, 2])).await;
    }
    // With or without an empty one, it is the same request.
    let ask = || call(&gateway, "POST", ":send").header("x-ms-client-request-id", "1").body("m");
    assert_eq!(ask().header("content-type", "").send().await.status, 202);
    assert_eq!(ask().send().await.header("x-oncewire-duplicate"), "true");
    assert_eq!(call(&gateway, "POST", ":send").body("end").send().await.status, 202);
    for once in [&b"m"[..], b"end"] {
        raw.expect_bare(Bare::binary(once)).await;
    }
}

#[tokio::test]
async fn json_behind_a_mark_of_byte_order_was_refused() {
    let gateway = Gateway::start().await;
    let mut raw = gateway.raw(&Token::bare().group("g")).await;
    let json = |path, body: &'static str| {
        call(&gateway, "POST", path).header("content-type", "application/json").body(body)
    };
    assert_eq!(json(":send", "\u{FEFF}{\"n\": 1.0}").send().await.status, 202);
    raw.expect_bare(Bare::text("{\"n\": 1.0}")).await;
    assert_eq!(json(":addToGroups", "\u{FEFF}{\"groups\": [\"h\"]}").send().await.status, 200);
    expect(&gateway, "HEAD", "groups/h", 200).await;
    assert_eq!(json(":send", "\u{FEFF}").send().await.status, 400);
}

#[tokio::test]
async fn empty_text_and_binary_are_legal_and_empty_json_is_not() {
    let gateway = Gateway::start().await;
    let mut raw = gateway.raw(&Token::bare().group("g")).await;
    for (content_type, expected) in
        [("text/plain", Bare::text("")), ("application/octet-stream", Bare::binary(b""))]
    {
        let answer = call(&gateway, "POST", ":send").header("content-type", content_type).send().await;
        assert_eq!(answer.status, 202);
        raw.expect_bare(expected).await;
    }
    for body in ["", "{", "{\"a\":1}x"] {
        let ask = call(&gateway, "POST", ":send").header("content-type", "application/json").body(body);
        let answer = ask.send().await;
        assert_eq!((answer.status, answer.header("x-ms-error-code")), (400, "Error.BadRequest"), "{body}");
        assert_eq!(answer.json()["message"], "The request body is not a valid JSON.");
    }
}

#[tokio::test]
async fn other_content_types_are_unsupported() {
    let gateway = Gateway::start().await;
    for content_type in ["text/html", "application/x-protobuf", "nonsense", "text/plain; charset=nonsense"] {
        let answer =
            call(&gateway, "POST", ":send").header("content-type", content_type).body("x").send().await;
        assert_eq!(answer.status, 415, "{content_type}");
    }
}

#[tokio::test]
async fn a_body_of_the_limit_is_taken_and_one_byte_more_is_too_large() {
    let gateway = Gateway::with(|config| config.http_body_bytes_max = 1000).await;
    let mut raw = gateway.raw(&Token::bare()).await;
    let ask = |bytes: usize| {
        call(&gateway, "POST", ":send").header("content-type", "text/plain").body("x".repeat(bytes))
    };
    let refused = ask(1001).send().await;
    assert_eq!((refused.status, refused.header("x-ms-error-code")), (413, "Error.BadRequest"));
    assert_eq!(refused.json()["message"], "The request body is larger than 1000 bytes.");
    assert_eq!(ask(1000).send().await.status, 202);
    raw.expect_bare(Bare::Text("x".repeat(1000))).await;
    let chunked = |bytes: usize| {
        let body = format!("{bytes:x}\r\n{}\r\n0\r\n\r\n", "y".repeat(bytes));
        let ask = call(&gateway, "POST", ":send").header("content-type", "text/plain").body(body);
        ask.without("content-length").header("transfer-encoding", "chunked")
    };
    assert_eq!(chunked(1001).send().await.status, 413);
    assert_eq!(chunked(1000).send().await.status, 202);
    raw.expect_bare(Bare::Text("y".repeat(1000))).await;
}

#[tokio::test]
async fn excluded_connections_are_left_out_of_all_and_groups_alone() {
    let gateway = Gateway::sharded().await;
    let mut a = gateway.session(RELIABLE, &Token::user("u").group("g")).await;
    let mut b = gateway.session(RELIABLE, &Token::user("u").group("g")).await;
    let mut c = gateway.session(RELIABLE, &Token::user("u").group("g")).await;
    let [id_a, id_b] = [&a, &b].map(id_of);
    send_text(&gateway, &format!(":send?excluded={id_a}&excluded={id_b}&excluded=none&excluded={id_a}"), "1")
        .await;
    send_text(&gateway, &format!("groups/g/:send?excluded={id_b}"), "2").await;
    send_text(&gateway, &format!("groups/g/:send?excluded={id_a},{id_b}"), "3").await;
    send_text(&gateway, &format!("users/u/:send?excluded={id_a}"), "4").await;
    send_text(&gateway, &format!("connections/{id_a}/:send?excluded={id_a}&filter=false"), "5").await;
    assert_eq!(texts(&mut a).await, ["2", "3", "4", "5"]);
    assert_eq!(texts(&mut b).await, ["3", "4"]);
    assert_eq!(texts(&mut c).await, ["1", "2", "3", "4"]);
}

#[tokio::test]
async fn metadata_headers_travel_beside_the_data() {
    let gateway = Gateway::start().await;
    let mut client = gateway.reliable("u").await;
    let ask = call(&gateway, "POST", ":send").header("content-type", "text/plain").body("x");
    let answer = ask.clone().header("X-WebPubSub-Metadata-Trace", "a1").send().await;
    assert_eq!(answer.status, 202);
    let mut expected = from_server(1, "x");
    expected["metadata"] = json!({"trace": "a1"});
    client.expect(expected).await;
    assert_eq!(ask.header("X-WebPubSub-Metadata-Long", &"v".repeat(1025)).send().await.status, 400);
}

#[tokio::test]
async fn a_message_is_kept_for_a_detached_client_as_long_as_it_is_to_live() {
    let gateway = Gateway::start().await;
    let client = gateway.reliable("u").await;
    let identity = client.identity();
    client.cut();
    send_text(&gateway, "users/u/:send?messageTtlSeconds=1", "short").await;
    send_text(&gateway, "users/u/:send?messageTtlSeconds=300", "long").await;
    send_text(&gateway, "users/u/:send?messageTtlSeconds=0", "for ever").await;
    tokio::time::sleep(std::time::Duration::from_millis(1_100)).await;
    let mut client = gateway.recover(&identity).await;
    client.expect(from_server(2, "long")).await;
    client.expect(from_server(3, "for ever")).await;
    for bad in ["-1", "301", "x", ""] {
        expect(&gateway, "POST", &format!(":send?messageTtlSeconds={bad}"), 400).await;
    }
}
