//! What a handler is told about a client that would begin a session, and what it makes of it.

use std::collections::BTreeMap;

use bytes::Bytes;
use oncewire_protocol::log::HandlerState;
use oncewire_protocol::wire::{GroupName, UserId};
use serde::{Deserialize, Serialize};

use super::answer::{self, BadAnswer};
use super::client::Answer;
use crate::engine::{Accepted, Connecting};

/// The body of the request: always all of it, arrays also for single values.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Client<'a> {
    claims: BTreeMap<&'a str, &'a [String]>,
    query: BTreeMap<&'a str, &'a [String]>,
    headers: BTreeMap<&'a str, &'a [String]>,
    subprotocols: &'a [String],
    /// The gateway asks clients for none.
    client_certificates: [(); 0],
}

/// What a handler may say. Unknown names are ignored, and `null` says nothing.
#[derive(Default, Deserialize)]
struct Wishes {
    #[serde(rename = "userId")]
    user_id: Option<String>,
    roles: Option<Vec<String>>,
    groups: Option<Vec<String>>,
    subprotocol: Option<String>,
}

/// The body of the request.
pub(super) fn body(connecting: &Connecting) -> Result<Bytes, serde_json::Error> {
    fn map(pairs: &[(String, Vec<String>)]) -> BTreeMap<&str, &[String]> {
        pairs.iter().map(|(name, values)| (name.as_str(), values.as_slice())).collect()
    }
    let client = Client {
        claims: map(&connecting.claims),
        query: map(&connecting.query),
        headers: map(&connecting.headers),
        subprotocols: &connecting.subprotocols,
        client_certificates: [],
    };
    serde_json::to_vec(&client).map(Bytes::from)
}

/// What a user's name may take, in bytes: as much as a token can name.
const USER_ID_BYTES_MAX: usize = 64 << 10;

/// As what the session begins after an answer of success.
pub(super) fn accepted(connecting: Connecting, answer: &Answer) -> Result<Accepted, BadAnswer> {
    let wishes = wishes(&answer::without_mark(answer.body.clone()))?;
    let state: Option<HandlerState> = answer::state(&answer.headers)?;
    let user_id = match wishes.user_id {
        None => connecting.user_id,
        Some(user_id) if user_id.is_empty() => None,
        Some(user_id) => {
            // Each later event names the user in a header.
            if user_id.contains(char::is_control) || user_id.len() > USER_ID_BYTES_MAX {
                return Err(BadAnswer::UserId);
            }
            Some(UserId::new(&user_id))
        }
    };
    let groups = match wishes.groups {
        Some(groups) if !groups.is_empty() => groups
            .iter()
            .map(|group| GroupName::new(group))
            .collect::<Result<_, _>>()
            .map_err(|_| BadAnswer::Group)?,
        Some(_) | None => connecting.groups,
    };
    let subprotocol = wishes.subprotocol.filter(|subprotocol| !subprotocol.is_empty());
    if !subprotocol.iter().all(|subprotocol| is_token(subprotocol)) {
        return Err(BadAnswer::Subprotocol);
    }
    Ok(Accepted { user_id, roles: wishes.roles.unwrap_or(connecting.roles), groups, subprotocol, state })
}

fn wishes(body: &[u8]) -> Result<Wishes, BadAnswer> {
    let body = body.trim_ascii();
    match body.first() {
        None => Ok(Wishes::default()),
        // An array would be taken for the values in their order.
        Some(b'[') => Err(BadAnswer::Connect),
        Some(_) => {
            let wishes: Option<Wishes> = serde_json::from_slice(body).map_err(|_| BadAnswer::Connect)?;
            Ok(wishes.unwrap_or_default())
        }
    }
}

/// What may stand in `Sec-WebSocket-Protocol`.
fn is_token(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderMap, HeaderValue, StatusCode};
    use oncewire_protocol::wire::{ConnectionId, HubName};

    use super::super::memory::room;
    use super::*;

    fn connecting() -> Connecting {
        let values = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>();
        Connecting {
            hub: HubName::new("chat").unwrap(),
            connection_id: ConnectionId::new("conn-1"),
            user_id: Some(UserId::new("ann")),
            roles: values(&["webpubsub.joinLeaveGroup"]),
            groups: vec![GroupName::new("token").unwrap()],
            claims: vec![("sub".to_owned(), values(&["ann"])), ("role".to_owned(), values(&["a", "b"]))],
            query: vec![("room".to_owned(), values(&["7"]))],
            headers: vec![("User-Agent".to_owned(), values(&["demo"]))],
            subprotocols: values(&["json.webpubsub.azure.v1"]),
        }
    }

    fn answered(body: &str) -> Result<Accepted, BadAnswer> {
        let body = Bytes::from(body.to_owned());
        accepted(
            connecting(),
            &Answer { status: StatusCode::OK, headers: HeaderMap::new(), body, room: room() },
        )
    }

    fn as_the_token_says() -> Accepted {
        let Connecting { user_id, roles, groups, .. } = connecting();
        Accepted { user_id, roles, groups, subprotocol: None, state: None }
    }

    #[test]
    fn an_answer_behind_a_mark_of_byte_order_was_no_json() {
        let accepted = answered("\u{FEFF}{\"userId\": \"bob\"}").unwrap();
        assert_eq!(accepted.user_id, Some(UserId::new("bob")));
        assert_eq!(answered("\u{FEFF}"), Ok(as_the_token_says()));
    }

    #[test]
    fn the_body_has_all_keys_and_arrays() {
        let json = |connecting: &Connecting| -> serde_json::Value {
            serde_json::from_slice(&body(connecting).unwrap()).unwrap()
        };
        assert_eq!(
            json(&connecting()),
            serde_json::json!({
                "claims": {"sub": ["ann"], "role": ["a", "b"]},
                "query": {"room": ["7"]},
                "headers": {"User-Agent": ["demo"]},
                "subprotocols": ["json.webpubsub.azure.v1"],
                "clientCertificates": [],
            })
        );
        let bare = Connecting {
            claims: Vec::new(),
            query: Vec::new(),
            headers: Vec::new(),
            subprotocols: Vec::new(),
            ..connecting()
        };
        let empty = serde_json::json!(
            {"claims": {}, "query": {}, "headers": {}, "subprotocols": [], "clientCertificates": []}
        );
        assert_eq!(json(&bare), empty);
    }

    #[test]
    fn what_the_handler_leaves_out_is_the_tokens() {
        for body in [
            "",
            "  ",
            "null",
            "{}",
            r#"{"userId":null,"roles":null,"groups":null,"subprotocol":null,"mqtt":null}"#,
            r#"{"groups":[]}"#,
            r#"{"subprotocol":""}"#,
            r#"{"subprotocols":["x"],"subProtocol":"x","other":1}"#,
        ] {
            assert_eq!(answered(body), Ok(as_the_token_says()), "{body}");
        }
    }

    #[test]
    fn what_the_handler_says_replaces_the_tokens() {
        let token = as_the_token_says;
        let group = |name: &str| GroupName::new(name).unwrap();
        for (body, expected) in [
            (r#"{"userId":"Zoë"}"#, Accepted { user_id: Some(UserId::new("Zoë")), ..token() }),
            (r#"{"userId":""}"#, Accepted { user_id: None, ..token() }),
            (r#"{"roles":["r"]}"#, Accepted { roles: vec!["r".to_owned()], ..token() }),
            (r#"{"roles":[]}"#, Accepted { roles: Vec::new(), ..token() }),
            (r#"{"groups":["a","b"]}"#, Accepted { groups: vec![group("a"), group("b")], ..token() }),
            (r#"{"subprotocol":"mine.v1"}"#, Accepted { subprotocol: Some("mine.v1".to_owned()), ..token() }),
        ] {
            assert_eq!(answered(body), Ok(expected), "{body}");
        }
        let mut headers = HeaderMap::new();
        headers.insert("ce-connectionState", HeaderValue::from_static("e30="));
        let answer = Answer { status: StatusCode::NO_CONTENT, headers, body: Bytes::new(), room: room() };
        let state = Some(HandlerState(Bytes::from_static(b"e30=")));
        assert_eq!(accepted(connecting(), &answer), Ok(Accepted { state, ..token() }));
    }

    #[test]
    fn what_cannot_be_understood_is_no_answer() {
        for body in
            ["{", "[]", r#"["ann"]"#, "\"ann\"", "1", "true", "{} {}", r#"{"userId":5}"#, r#"{"roles":"r"}"#]
        {
            assert_eq!(answered(body), Err(BadAnswer::Connect), "{body}");
        }
        assert_eq!(answered(r#"{"roles":[null]}"#), Err(BadAnswer::Connect));
        assert_eq!(answered(r#"{"groups":[null]}"#), Err(BadAnswer::Connect));
        assert_eq!(answered(r#"{"groups":["a"," "]}"#), Err(BadAnswer::Group));
        assert_eq!(answered(&format!(r#"{{"groups":["{}"]}}"#, "g".repeat(1025))), Err(BadAnswer::Group));
        assert!(answered(&format!(r#"{{"groups":["{}"]}}"#, "g".repeat(1024))).is_ok());
        for user in [r"a\r\nb", r"\u0000", r"\u0085"] {
            assert_eq!(answered(&format!(r#"{{"userId":"{user}"}}"#)), Err(BadAnswer::UserId), "{user}");
        }
        assert_eq!(answered(r#"{"subprotocol":"a b"}"#), Err(BadAnswer::Subprotocol));
        assert_eq!(answered(r#"{"subprotocol":"é"}"#), Err(BadAnswer::Subprotocol));
    }
}
