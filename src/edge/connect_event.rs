//! What the application's `connect` handler is told about an upgrade request, and what its choice of a subprotocol means.

use axum::http::header::AUTHORIZATION;
use axum::http::request;
use oncewire_protocol::wire::{ConnectionId, Subprotocol};

use super::query::Query;
use super::upgrade_request::{Begin, Selected, access_token, offer};
use crate::auth::all_claims;
use crate::engine::Connecting;
use crate::query;

/// Headers of the service's own front; an application must not take a client's for them.
const INTERNAL_HEADERS: &str = "x-asrs-internal-";

/// That the handler chose a subprotocol which the client did not offer: the client would have to hang up (RFC 6455,
/// section 4.1).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotOffered;

/// Describes a request. The access token is left out wherever it may stand; of its claims all are there.
pub(super) fn describe(request: &request::Parts, begin: &Begin, connection_id: ConnectionId) -> Connecting {
    let query = request.uri.query().unwrap_or_default();
    let token = Query::parse(query).unwrap_or_default();
    let claims = access_token(request, &token).map(all_claims).unwrap_or_default();
    Connecting {
        hub: begin.hub.clone(),
        connection_id,
        user_id: begin.user_id.clone(),
        roles: begin.roles.clone(),
        groups: begin.groups.clone(),
        claims,
        query: parameters(query),
        headers: headers(request),
        subprotocols: names(&offer(&request.headers)).map(str::to_owned).collect(),
    }
}

/// What a socket speaks when its handler chose `name`: one that the gateway speaks, or a raw one under another name.
///
/// # Errors
/// When the client did not offer it.
pub(super) fn choose(name: &str, offer: &str) -> Result<Selected, NotOffered> {
    let exact = names(offer).find(|offered| *offered == name);
    let spelling = exact.or_else(|| names(offer).find(|offered| offered.eq_ignore_ascii_case(name)));
    let spelling = spelling.ok_or(NotOffered)?.to_owned();
    let subprotocol = Subprotocol::from_name(&spelling).unwrap_or(Subprotocol::Raw);
    Ok(Selected { subprotocol, spelling: Some(spelling) })
}

fn names(offer: &str) -> impl Iterator<Item = &str> {
    offer.split(',').map(str::trim).filter(|name| !name.is_empty())
}

/// The query, decoded, in its order. What is not UTF-8 is told as far as it is.
fn parameters(query: &str) -> Vec<(String, Vec<String>)> {
    let others = query::parameters(query).filter(|one| !one.name.eq_ignore_ascii_case("access_token"));
    gathered(others.map(|one| (one.name.into_owned(), one.value.into_owned())))
}

/// The headers, their names in lower case. A value that is not UTF-8 is told as far as it is.
fn headers(request: &request::Parts) -> Vec<(String, Vec<String>)> {
    let others = request
        .headers
        .iter()
        .filter(|(name, _)| **name != AUTHORIZATION && !name.as_str().starts_with(INTERNAL_HEADERS));
    gathered(others.map(|(name, value)| {
        (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
    }))
}

/// All values of a name, where it comes first. There are few names: the head of a request is bounded.
fn gathered(pairs: impl Iterator<Item = (String, String)>) -> Vec<(String, Vec<String>)> {
    let mut gathered: Vec<(String, Vec<String>)> = Vec::new();
    for (name, value) in pairs {
        match gathered.iter_mut().find(|(known, _)| *known == name) {
            Some((_, values)) => values.push(value),
            None => gathered.push((name, vec![value])),
        }
    }
    gathered
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderValue, Request};
    use oncewire_protocol::wire::{GroupName, HubName, UserId};

    use super::*;

    const JSON: &str = "json.webpubsub.azure.v1";
    const RELIABLE: &str = "json.reliable.webpubsub.azure.v1";

    /// `{"sub":"ann","role":["r"],"exp":7}`
    const TOKEN: &str = "e30.eyJzdWIiOiJhbm4iLCJyb2xlIjpbInIiXSwiZXhwIjo3fQ.c2lnbmF0dXJl";

    fn described(target: &str, headers: &[(&str, &[u8])]) -> Connecting {
        let mut request = Request::builder().uri(target);
        for (name, value) in headers {
            request = request.header(*name, HeaderValue::from_bytes(value).unwrap());
        }
        let begin = Begin {
            hub: HubName::new("chat").unwrap(),
            user_id: Some(UserId::new("ann")),
            roles: vec!["r".to_owned()],
            groups: vec![GroupName::new("g").unwrap()],
            publishes_to: None,
        };
        describe(&request.body(()).unwrap().into_parts().0, &begin, ConnectionId::new("c"))
    }

    fn pairs(list: &[(&str, &[&str])]) -> Vec<(String, Vec<String>)> {
        let owned = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect();
        list.iter().map(|(name, values)| ((*name).to_owned(), owned(values))).collect()
    }

    #[test]
    fn the_session_to_be_is_described_by_its_token() {
        let described = described(&format!("/client/hubs/chat?access_token={TOKEN}"), &[]);
        assert_eq!((described.hub.as_str(), described.connection_id.as_str()), ("chat", "c"));
        assert_eq!(described.user_id, Some(UserId::new("ann")));
        assert_eq!((described.roles, described.groups.len()), (vec!["r".to_owned()], 1));
        assert_eq!(described.claims, pairs(&[("exp", &["7"]), ("role", &["r"]), ("sub", &["ann"])]));
        assert_eq!((described.query, described.headers), (Vec::new(), Vec::new()));
    }

    #[test]
    fn the_token_is_told_in_neither_place() {
        let query = format!("/client/?a=1&ACCESS_Token={TOKEN}&b=%C3%A9+x&a=2&A=3&c&access_token=x&d=%FF");
        let in_query = described(&query, &[]);
        assert_eq!(
            in_query.query,
            pairs(&[("a", &["1", "2"]), ("b", &["é x"]), ("A", &["3"]), ("c", &[""]), ("d", &["\u{FFFD}"])])
        );
        let bearer = format!("Bearer {TOKEN}");
        let in_header =
            described("/client/?hub=chat", &[("Authorization", bearer.as_bytes()), ("Host", b"h")]);
        assert_eq!(in_header.claims.len(), 3);
        assert_eq!(in_header.headers, pairs(&[("host", &["h"])]));
        for described in [in_query, in_header] {
            assert!(!format!("{described:?}").contains("eyJzdWIi"));
        }
    }

    #[test]
    fn a_client_without_a_token_claims_nothing() {
        assert_eq!(described("/client/?hub=chat", &[]).claims, []);
    }

    #[test]
    fn headers_are_told_with_all_their_lines_but_not_internal_ones() {
        let described = described(
            "/client/?hub=chat",
            &[
                ("X-ASRS-Internal-User", b"root"),
                ("Cookie", b"a=1"),
                ("X-Twice", b"1"),
                ("cookie", b"b=2"),
                ("x-twice", b"2, 3"),
                ("x-utf8", "é".as_bytes()),
                ("x-latin1", b"a\xE9"),
            ],
        );
        let expected: &[(&str, &[&str])] = &[
            ("cookie", &["a=1", "b=2"]),
            ("x-twice", &["1", "2, 3"]),
            ("x-utf8", &["é"]),
            ("x-latin1", &["a\u{FFFD}"]),
        ];
        assert_eq!(described.headers, pairs(expected));
    }

    #[test]
    fn subprotocols_are_told_in_the_clients_order() {
        let lines: &[(&str, &[u8])] =
            &[("Sec-WebSocket-Protocol", b"b , a,,"), ("Sec-WebSocket-Protocol", JSON.as_bytes())];
        assert_eq!(described("/client/?hub=chat", lines).subprotocols, ["b", "a", JSON]);
        assert!(described("/client/?hub=chat", &[]).subprotocols.is_empty());
    }

    #[test]
    fn a_handler_chooses_among_what_the_client_offers() {
        let offer = format!("graphql-ws, Custom, custom, JSON.webpubsub.azure.v1,{RELIABLE}");
        let chosen = |name| choose(name, &offer).map(|selected| (selected.subprotocol, selected.spelling));
        for (name, subprotocol, spelling) in [
            (RELIABLE, Subprotocol::JsonReliable, RELIABLE),
            (JSON, Subprotocol::Json, "JSON.webpubsub.azure.v1"),
            ("graphql-ws", Subprotocol::Raw, "graphql-ws"),
            ("GraphQL-WS", Subprotocol::Raw, "graphql-ws"),
            ("custom", Subprotocol::Raw, "custom"),
            ("CUSTOM", Subprotocol::Raw, "Custom"),
        ] {
            assert_eq!(chosen(name), Ok((subprotocol, Some(spelling.to_owned()))), "{name}");
        }
        for name in ["protobuf.webpubsub.azure.v1", "other", "", "graphql-ws, Custom"] {
            assert_eq!(chosen(name), Err(NotOffered), "{name}");
        }
        assert_eq!(choose("other", ""), Err(NotOffered));
    }
}
