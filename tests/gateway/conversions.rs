//! What each kind of publisher sends, as each kind of receiver gets it.

use serde_json::{Value, json};

use crate::support::protobuf::{embedded, field, integer};
use crate::support::*;

const GROUP: &str = "room";
const USER: &str = "ada";

/// Fields of a protobuf payload.
const TEXT: u8 = 1;
const BYTES: u8 = 2;
const ANY: u8 = 3;
const JSON_TEXT: u8 = 4;

/// An Any of type `azure.webpubsub.TestMessage` with the value 08 01, and its base64.
const ANY_BYTES: &[u8] = b"\x0a\x2ftype.googleapis.com/azure.webpubsub.TestMessage\x12\x02\x08\x01";
const ANY_BASE64: &str = "Ci90eXBlLmdvb2dsZWFwaXMuY29tL2F6dXJlLndlYnB1YnN1Yi5UZXN0TWVzc2FnZRICCAE=";

/// JSON that no parser gives back as it was.
const ODD_JSON: &str = r#"{ "b" : 1.0, "a":1e2 ,"b": 12345678901234567890.10, "é":"\u0041\/" }"#;

/// One of each kind of receiver, all in the group.
struct Receivers {
    json: Socket,
    json_reliable: Socket,
    protobuf: Socket,
    protobuf_reliable: Socket,
    raw: Socket,
    heard: u64,
}

impl Receivers {
    async fn of(gateway: &Gateway) -> Self {
        let token = Token::bare().group(GROUP);
        Self {
            json: gateway.session(JSON, &token).await,
            json_reliable: gateway.session(RELIABLE, &token).await,
            protobuf: gateway.protobuf(PROTOBUF, &token).await,
            protobuf_reliable: gateway.protobuf(PROTOBUF_RELIABLE, &token).await,
            raw: gateway.raw(&token).await,
            heard: 0,
        }
    }

    /// Each has to hear this next. `json` is the data type and the letters of the data, `protobuf` the field of the
    /// payload and its content.
    async fn expect(&mut self, json: (&str, &str), protobuf: (u8, &[u8]), raw: Bare, case: &str) {
        self.heard += 1;
        let (data_type, data) = json;
        for (socket, sequence_id) in [(&mut self.json, None), (&mut self.json_reliable, Some(self.heard))] {
            let mut text = socket.read_text().await;
            let mut expected = json!({
                "type": "message", "from": "group", "group": GROUP, "fromUserId": USER, "dataType": data_type,
            });
            if data_type == "json" {
                // Letter by letter: some of it is beyond what a parser keeps.
                let property = format!("\"data\":{data}");
                assert!(text.contains(&property), "{case}: {text}");
                text = text.replace(&property, "\"data\":null");
                expected["data"] = Value::Null;
            } else {
                expected["data"] = serde_json::from_str(data).unwrap();
            }
            if let Some(id) = sequence_id {
                expected["sequenceId"] = id.into();
            }
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected, "{case}");
        }
        let (number, content) = protobuf;
        let payload = embedded(3, &[field(number, content)]);
        let fields = [field(1, b"group"), field(2, GROUP.as_bytes()), payload];
        self.protobuf.expect_bare(Bare::Binary(embedded(2, &fields))).await;
        let sequenced = [&fields[..], &[integer(4, self.heard)]].concat();
        self.protobuf_reliable.expect_bare(Bare::Binary(embedded(2, &sequenced))).await;
        assert_eq!(self.raw.read_bare().await, raw, "{case}");
    }
}

fn from_json(data_type: &str, data: &str) -> Bare {
    Bare::Text(format!(
        r#"{{"type":"sendToGroup","group":"{GROUP}","dataType":"{data_type}","data":{data}}}"#
    ))
}

fn from_protobuf(number: u8, content: &[u8]) -> Bare {
    Bare::Binary(embedded(1, &[field(1, GROUP.as_bytes()), embedded(3, &[field(number, content)])]))
}

/// One of each kind of publisher.
async fn publishers(gateway: &Gateway) -> [(&'static str, Socket); 5] {
    let token = Token::user(USER);
    [
        ("json", gateway.session(JSON, &token).await),
        ("json.reliable", gateway.session(RELIABLE, &token).await),
        ("protobuf", gateway.protobuf(PROTOBUF, &token).await),
        ("protobuf.reliable", gateway.protobuf(PROTOBUF_RELIABLE, &token).await),
        ("raw", gateway.raw_publisher(GROUP, &token).await),
    ]
}

/// Sends this from each publisher of its encoding; all receivers have to hear the rest.
async fn check(
    publishers: &mut [(&'static str, Socket); 5],
    receivers: &mut Receivers,
    (encoding, sent): (&str, Bare),
    json: (&str, &str),
    protobuf: (u8, &[u8]),
    raw: Bare,
) {
    let mut tried = 0;
    for (name, socket) in publishers.iter_mut().filter(|(name, _)| name.starts_with(encoding)) {
        socket.send_bare(&sent).await;
        receivers.expect(json, protobuf, raw.clone(), &format!("{name}: {sent:?}")).await;
        tried += 1;
    }
    assert!(tried > 0, "{encoding}");
}

/// The same where all have to hear a text.
async fn check_text(
    publishers: &mut [(&'static str, Socket); 5],
    receivers: &mut Receivers,
    sent: (&str, Bare),
    text: &str,
) {
    let quoted = json!(text).to_string();
    check(publishers, receivers, sent, ("text", &quoted), (TEXT, text.as_bytes()), Bare::text(text)).await;
}

#[tokio::test]
async fn s22_1_18_text_arrives_as_text() {
    let gateway = Gateway::start().await;
    let (mut publishers, mut receivers) = (publishers(&gateway).await, Receivers::of(&gateway).await);
    for text in ["hi", "", "\"quoted\" \\ \n\r\t\u{0}\u{7f}\u{2028}\u{1F600}", r#"{"a":1}"#, "null"] {
        let quoted = json!(text).to_string();
        for sent in [
            ("json", from_json("text", &quoted)),
            ("json", from_json("Text", &quoted)),
            ("protobuf", from_protobuf(TEXT, text.as_bytes())),
            ("raw", Bare::text(text)),
        ] {
            check_text(&mut publishers, &mut receivers, sent, text).await;
        }
    }
    // Escapes of the publisher's choice are one text.
    let sent = ("json", from_json("text", r#""\u0041\/\ud83d\ude00""#));
    check_text(&mut publishers, &mut receivers, sent, "A/\u{1F600}").await;
}

#[tokio::test]
async fn s22_1_18_json_arrives_letter_by_letter() {
    let gateway = Gateway::start().await;
    let (mut publishers, mut receivers) = (publishers(&gateway).await, Receivers::of(&gateway).await);
    for data in [ODD_JSON, r#""hi""#, "[ ]", "-0", "1E400", "false", r#"{"sequenceId":7,"data":"x"}"#] {
        for sent in
            [("json", from_json("json", data)), ("protobuf", from_protobuf(JSON_TEXT, data.as_bytes()))]
        {
            let expected = Bare::text(data);
            check(
                &mut publishers,
                &mut receivers,
                sent,
                ("json", data),
                (JSON_TEXT, data.as_bytes()),
                expected,
            )
            .await;
        }
    }
}

#[tokio::test]
async fn s22_1_18_bytes_arrive_as_bytes() {
    let gateway = Gateway::start().await;
    let (mut publishers, mut receivers) = (publishers(&gateway).await, Receivers::of(&gateway).await);
    let every_byte: Vec<u8> = (0..=255).collect();
    for (bytes, base64) in [
        (&b""[..], "\"\""),
        (b"\x00\x01\x02\x03\x04\xff", "\"AAECAwT/\""),
        (b"\xff", "\"/w==\""),
        (b"{}", "\"e30=\""),
    ] {
        for sent in [
            ("json", from_json("binary", base64)),
            ("protobuf", from_protobuf(BYTES, bytes)),
            ("raw", Bare::binary(bytes)),
        ] {
            let expected = Bare::binary(bytes);
            check(&mut publishers, &mut receivers, sent, ("binary", base64), (BYTES, bytes), expected).await;
        }
    }
    let sent = ("raw", Bare::binary(&every_byte));
    let base64 = json!(base64_of(&every_byte)).to_string();
    let expected = Bare::binary(&every_byte);
    check(&mut publishers, &mut receivers, sent, ("binary", &base64), (BYTES, &every_byte), expected).await;
}

#[tokio::test]
async fn s22_1_18_an_any_arrives_whole_and_unchanged() {
    let gateway = Gateway::start().await;
    let (mut publishers, mut receivers) = (publishers(&gateway).await, Receivers::of(&gateway).await);
    // The second has its fields in the other order, and one that nobody knows.
    let odd = [field(2, b"\x08\x01"), integer(9, 300), field(1, b"example.com/x")].concat();
    for (bytes, base64) in [(ANY_BYTES, ANY_BASE64.to_owned()), (&odd, base64_of(&odd))] {
        let base64 = json!(base64).to_string();
        for sent in [("json", from_json("protobuf", &base64)), ("protobuf", from_protobuf(ANY, bytes))] {
            let expected = Bare::binary(bytes);
            check(&mut publishers, &mut receivers, sent, ("protobuf", &base64), (ANY, bytes), expected).await;
        }
    }
}

#[tokio::test]
async fn metadata_crosses_encodings_and_is_hidden_from_raw_clients() {
    let gateway = Gateway::start().await;
    let token = Token::user(USER);
    let mut json = gateway.session(RELIABLE, &token.clone().group(GROUP)).await;
    let mut protobuf = gateway.protobuf(PROTOBUF_RELIABLE, &token.clone().group(GROUP)).await;
    let mut raw = gateway.raw(&token.group(GROUP)).await;
    let entry = |number: u8| embedded(number, &[field(1, b"Trace"), field(2, b"a1")]);
    json.send(json!({
        "type": "sendToGroup", "group": GROUP, "dataType": "text", "data": "1", "metadata": {"Trace": "a1"},
    }))
    .await;
    let payload = embedded(3, &[field(TEXT, b"2")]);
    let mut sequence_id = 0;
    for text in ["1", "2"] {
        sequence_id += 1;
        if text == "2" {
            protobuf
                .send_binary(&embedded(1, &[field(1, GROUP.as_bytes()), payload.clone(), entry(6)]))
                .await;
        }
        let heard = json.read().await;
        assert_eq!((&heard["data"], &heard["metadata"]), (&json!(text), &json!({"Trace": "a1"})));
        let fields = [
            field(1, b"group"),
            field(2, GROUP.as_bytes()),
            embedded(3, &[field(TEXT, text.as_bytes())]),
            entry(5),
            integer(4, sequence_id),
        ];
        protobuf.expect_bare(Bare::Binary(embedded(2, &fields))).await;
        raw.expect_bare(Bare::text(text)).await;
    }
}

fn base64_of(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
