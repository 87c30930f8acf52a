//! Payloads between JSON clients.

use serde_json::{Value, json};

use crate::support::*;

/// Publishes and returns what a reliable and a plain subscriber get, letter by letter.
async fn published(gateway: &Gateway, request: &str) -> [String; 2] {
    let mut reliable = gateway.session(RELIABLE, &Token::bare().group("g")).await;
    let mut plain = gateway.session(JSON, &Token::bare().group("g")).await;
    let mut publisher = gateway.session(JSON, &Token::user("p")).await;
    publisher.send_text(request).await;
    [reliable.read_text().await, plain.read_text().await]
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[tokio::test]
async fn s22_1_18_payloads_reach_json_clients_as_they_were_published() {
    let gateway = Gateway::start().await;
    let any = "Ci90eXBlLmdvb2dsZWFwaXMuY29tL2F6dXJlLndlYnB1YnN1Yi5UZXN0TWVzc2FnZRICCAE=";
    for (data_type, data, expected_type) in [
        ("text", json!("hi \"there\"\n\u{1F600}\u{7f}\u{0}"), "text"),
        ("text", json!(""), "text"),
        ("TEXT", json!("x"), "text"),
        ("json", json!({"n": 1, "list": [true, null, "x"]}), "json"),
        ("json", json!("a string"), "json"),
        ("Json", json!(0), "json"),
        ("binary", json!("AAECAwT/"), "binary"),
        ("Binary", json!(""), "binary"),
        ("protobuf", json!(any), "protobuf"),
    ] {
        let request = json!({"type": "sendToGroup", "group": "g", "dataType": data_type, "data": data});
        let [reliable, plain] = published(&gateway, &request.to_string()).await;
        let mut expected = json!({
            "type": "message", "from": "group", "group": "g", "fromUserId": "p",
            "dataType": expected_type, "data": data,
        });
        assert_eq!(parsed(&plain), expected);
        expected["sequenceId"] = json!(1);
        assert_eq!(parsed(&reliable), expected);
    }
}

#[tokio::test]
async fn json_is_the_data_type_when_there_is_none() {
    let gateway = Gateway::start().await;
    let [reliable, _] = published(&gateway, r#"{"type":"sendToGroup","group":"g","data":[1]}"#).await;
    let heard = parsed(&reliable);
    assert_eq!((&heard["dataType"], &heard["data"]), (&json!("json"), &json!([1])));
}

#[tokio::test]
async fn s22_15_json_text_is_kept_letter_by_letter() {
    let gateway = Gateway::start().await;
    for data in [
        r#"{ "b" : 1.0, "a" : 1e2 , "b" : 12345678901234567890.10 }"#,
        r#""\u0041\/é""#,
        "[ ]",
        "-0",
        "1E400",
        r#"{"deep":{"type":"ack","sequenceId":7}}"#,
    ] {
        let request = format!(r#"{{"type":"sendToGroup","group":"g","dataType":"json","data":{data}}}"#);
        for heard in published(&gateway, &request).await {
            assert!(heard.contains(&format!("\"data\":{data}")), "{heard}");
        }
    }
}

#[tokio::test]
async fn s22_12_data_and_data_type_are_always_there_also_beside_metadata_alone() {
    let gateway = Gateway::start().await;
    let request = r#"{"type":"sendToGroup","group":"g","metadata":{"Trace":"a1","empty":""}}"#;
    for heard in published(&gateway, request).await {
        let heard = parsed(&heard);
        assert_eq!(heard["dataType"], "text");
        assert_eq!(heard["data"], "");
        assert_eq!(heard["metadata"], json!({"Trace": "a1", "empty": ""}));
    }
    let bare = r#"{"type":"sendToGroup","group":"g","dataType":"text","data":"x","metadata":{}}"#;
    for heard in published(&gateway, bare).await {
        assert!(parsed(&heard).get("metadata").is_none(), "{heard}");
    }
}

#[tokio::test]
async fn a_sender_without_a_user_is_null_or_absent() {
    let gateway = Gateway::start().await;
    let mut reader = gateway.session(RELIABLE, &Token::bare().group("g")).await;
    let mut writer = gateway.session(JSON, &Token::bare().role("webpubsub.sendToGroup")).await;
    writer.done(publish("g", 1, "hi")).await;
    assert_eq!(reader.read().await.get("fromUserId").unwrap_or(&Value::Null), &Value::Null);
}
