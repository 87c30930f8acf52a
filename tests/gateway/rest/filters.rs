//! The filter language through HTTP: four clients, and whom each filter selects.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::*;

/// Filters, and the clients that each selects. `{B}` stands for the connection id of B.
const SELECTING: &[(&str, &str)] = &[
    ("", "ABCD"),
    ("userId eq 'ann'", "A"),
    ("USERID eq 'ann'", "A"),
    ("userId eq 'Ann'", ""),
    ("tolower(userId) eq 'ann'", "A"),
    ("userId ne 'ann'", "BCD"),
    ("userId eq null", "C"),
    ("userId ne null", "ABD"),
    ("not (userId eq null)", "ABD"),
    ("userId eq 'O''Neil, Tom'", "D"),
    ("userId in ('ann','O''Neil, Tom')", "AD"),
    ("userId in ('ann', null)", "AC"),
    ("userId in ()", ""),
    ("'red' in groups", "AB"),
    ("not 'red' in groups", "CD"),
    ("'red' in groups and not ('blue' in groups)", "B"),
    ("'red' in groups or 'blue' in groups", "ABD"),
    ("'a b' in groups", "D"),
    ("length(groups) eq 0", "C"),
    ("length(groups) ge 2", "AD"),
    ("length(userId) gt 3", "D"),
    ("length(userId) le 3", "AB"),
    ("not (length(userId) gt 3)", "ABC"),
    ("startswith(userId,'a')", "A"),
    ("endswith(connectionId,'{B}')", "B"),
    ("contains(userId,'Neil')", "D"),
    ("contains(userId,'neil')", ""),
    ("indexof(userId,'n') eq 1", "A"),
    ("indexof(userId,'z') eq -1", "ABCD"),
    ("substring(userId,1,1) eq 'o'", "B"),
    ("substring(userId,9) eq null", "ABC"),
    ("concat(userId,'-x') eq '-x'", "C"),
    ("trim('  ann ') eq userId", "A"),
    ("startswith(protocol,'json.')", "AD"),
    ("userId eq null or 'red' in groups and 'blue' in groups", "AC"),
    ("(userId eq null or 'red' in groups) and 'blue' in groups", "A"),
    ("userId eq 1", ""),
    ("userId ne 1", "ABCD"),
    ("true", "ABCD"),
    ("false", ""),
];

const REFUSED: &[&str] = &[
    " ",
    "userId",
    "userId lt 'b'",
    "not userId eq 'ann'",
    "not length(userId) gt 5",
    "userId EQ 'ann'",
    "userId = 'ann'",
    "userId == 'ann'",
    "userId eq \"ann\"",
    "userId eq 'ann",
    "groups/any(g: g eq 'red')",
    "userName eq 'x'",
    "length(userId) add 1 gt 3",
    "length(userId) eq 3L",
    "'x' in userId",
    "userId eq 'ann' and",
];

/// A, B, C and D as the specification's examples have them, but for their connection ids; C has no subprotocol.
struct Four {
    gateway: Gateway,
    a: Socket,
    b: Socket,
    c: Socket,
    d: Socket,
    b_id: String,
}

impl Four {
    async fn connect(gateway: Gateway) -> Self {
        let user = |name: &str, groups: &[&str]| {
            groups.iter().fold(Token::bare().named(name), |token, group| token.group(group))
        };
        let a = gateway.session(JSON, &user("ann", &["red", "blue"])).await;
        let b = gateway.protobuf(PROTOBUF, &user("bob", &["red"])).await;
        let c = gateway.raw(&Token::bare()).await;
        let d = gateway.session(RELIABLE, &user("O'Neil, Tom", &["blue", "a b"])).await;
        let listed = call(&gateway, "GET", "groups/red/connections").send().await.json();
        let rows = listed["value"].as_array().unwrap();
        let b_row = rows.iter().find(|row| row["userId"] == "bob").unwrap();
        let b_id = b_row["connectionId"].as_str().unwrap().to_owned();
        Self { gateway, a, b, c, d, b_id }
    }

    /// Sends a text through a filter, then one to everybody; tells who got the first.
    async fn selected(&mut self, filter: &str) -> String {
        let filter = filter.replace("{B}", &self.b_id);
        let path = format!(":send?filter={}", utf8_percent_encode(&filter, NON_ALPHANUMERIC));
        send_text(&self.gateway, &path, "filtered").await;
        send_text(&self.gateway, ":send", "all").await;
        let mut got = String::new();
        for (name, socket) in [('A', &mut self.a), ('B', &mut self.b), ('C', &mut self.c), ('D', &mut self.d)]
        {
            let mut bytes = content(socket).await;
            if contains(&bytes, "filtered") {
                got.push(name);
                bytes = content(socket).await;
            }
            assert!(contains(&bytes, "all"), "{name} after {filter}");
        }
        got
    }
}

async fn content(socket: &mut Socket) -> Vec<u8> {
    match socket.read_bare().await {
        Bare::Text(text) => text.into_bytes(),
        Bare::Binary(bytes) => bytes,
    }
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}

#[tokio::test]
async fn each_filter_selects_these_clients() {
    for gateway in [Gateway::start().await, Gateway::sharded().await] {
        let mut four = Four::connect(gateway).await;
        for (filter, expected) in SELECTING {
            assert_eq!(four.selected(filter).await, *expected, "{filter}");
        }
    }
}

#[tokio::test]
async fn what_is_no_filter_is_refused_with_its_position_before_the_body_is_read() {
    let gateway = Gateway::start().await;
    for filter in REFUSED {
        let path = format!(":send?filter={}", utf8_percent_encode(filter, NON_ALPHANUMERIC));
        let answer = call(&gateway, "POST", &path).header("content-type", "text/html").send().await;
        assert_eq!(answer.status, 400, "{filter}");
        let detail = answer.json();
        assert_eq!((&detail["code"], &detail["target"]), (&json!("Error.BadRequest"), &json!("Request")));
        assert!(detail["message"].as_str().unwrap().contains("position"), "{detail}");
    }
    let nested = format!(":send?filter={}true{}", "(".repeat(12), ")".repeat(12));
    expect(&gateway, "POST", &nested, 202).await;
    let too_deep = format!(":send?filter={}true{}", "(".repeat(65), ")".repeat(65));
    expect(&gateway, "POST", &too_deep, 400).await;
    let costly = |values: usize| {
        let clauses: Vec<String> = (0..values).map(|n| format!("contains(userId,%27{n}%27)")).collect();
        format!(":send?filter={}", clauses.join("%20or%20"))
    };
    expect(&gateway, "POST", &costly(100), 202).await;
    expect(&gateway, "POST", &costly(101), 400).await;
}

#[tokio::test]
async fn groups_and_users_are_filtered_too_and_so_is_bulk_membership() {
    let mut four = Four::connect(Gateway::start().await).await;
    send_text(&four.gateway, "groups/red/:send?filter=%27blue%27%20in%20groups", "1").await;
    send_text(&four.gateway, "users/ann/:send?filter=false", "2").await;
    assert!(contains(&content(&mut four.a).await, "\"1\""));
    for (filter, expected) in [("'red' in groups", "AB"), ("userId eq null", "ABC")] {
        let body = json!({"groups": ["new"], "filter": filter}).to_string();
        let ask = call(&four.gateway, "POST", ":addToGroups").header("content-type", "application/json");
        assert_eq!(ask.body(body).send().await.status, 200);
        assert_eq!(four.selected("'new' in groups").await, expected);
    }
    let body = json!({"groups": ["new"], "filter": "'new' in groups and userId ne 'bob'"}).to_string();
    let ask = call(&four.gateway, "POST", ":removeFromGroups").header("content-type", "application/json");
    assert_eq!(ask.body(body).send().await.status, 200);
    assert_eq!(four.selected("'new' in groups").await, "B");
}
