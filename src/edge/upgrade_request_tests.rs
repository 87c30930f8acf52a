use axum::http::Request;

use super::*;
use crate::auth::ClientGrant;
use crate::config::{HubOverrides, Secret};

const KEY: &str = "0123456789abcdef0123456789abcdef";
const NOW: u64 = 1_900_000_000;
const RELIABLE: &str = "json.reliable.webpubsub.azure.v1";

/// A request as the official JavaScript client makes it, to be changed.
struct Asking {
    target: String,
    path_hub: Option<&'static str>,
    headers: Vec<(&'static str, String)>,
    method: Method,
    version: Version,
    config: Config,
}

fn asking(path_hub: Option<&'static str>, query: &str) -> Asking {
    let headers = [
        ("host", "gw.example"),
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("sec-websocket-extensions", "permessage-deflate; client_max_window_bits"),
        ("sec-websocket-protocol", RELIABLE),
    ];
    Asking {
        target: format!("/client/?{query}"),
        path_hub,
        headers: headers.map(|(name, value)| (name, value.to_owned())).into(),
        method: Method::GET,
        version: Version::HTTP_11,
        config: Config { access_key: Some(Secret::new(KEY)), ..Config::default() },
    }
}

impl Asking {
    fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.retain(|(known, _)| *known != name);
        self.more(name, value)
    }

    fn more(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| *known != name);
        self
    }

    fn decide(&self) -> Result<UpgradeRequest, Refusal> {
        let mut request =
            Request::builder().method(&self.method).version(self.version).uri(self.target.as_str());
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        decide(&parts, self.path_hub, &AccessKeys::new(KEY, None).unwrap(), &self.config, NOW)
    }

    fn refusal(&self) -> Option<Refusal> {
        self.decide().err()
    }

    fn begin(&self) -> Begin {
        match self.decide().map(|handshake| handshake.purpose) {
            Ok(Purpose::Begin(begin)) => begin,
            Ok(_) => panic!("a recovery"),
            Err(refusal) => panic!("{refusal:?}"),
        }
    }

    fn selected(&self) -> (Subprotocol, Option<String>) {
        let selected = self.decide().unwrap().selected;
        (selected.subprotocol, selected.spelling)
    }

    fn is_unrecoverable(&self) -> bool {
        matches!(self.decide().map(|handshake| handshake.purpose), Ok(Purpose::Unrecoverable))
    }
}

fn token_with(groups: &[&str], validity_seconds: u64, at: u64) -> String {
    let groups: Vec<_> = groups.iter().map(|group| (*group).to_owned()).collect();
    let grant = ClientGrant {
        endpoint: &"http://gw.example".parse().unwrap(),
        hub: "chat",
        user_id: Some("ada"),
        roles: &["webpubsub.sendToGroup".to_owned()],
        groups: &groups,
        validity_seconds,
    };
    AccessKeys::new(KEY, None).unwrap().sign_client_token(&grant, at).unwrap()
}

fn token() -> String {
    token_with(&["g1", "g2"], 60, NOW)
}

fn allowed(path_hub: Option<&'static str>, more: &str) -> Asking {
    asking(path_hub, &format!("access_token={}{more}", token()))
}

#[test]
fn a_good_token_begins_its_session() {
    let asking = allowed(Some("Chat"), "");
    let begin = asking.begin();
    assert_eq!(begin.hub.as_str(), "chat");
    assert_eq!(begin.user_id, Some(UserId::new("ada")));
    assert_eq!(begin.roles, ["webpubsub.sendToGroup"]);
    assert_eq!(begin.groups, [GroupName::new("g1").unwrap(), GroupName::new("g2").unwrap()]);
    assert_eq!(asking.selected(), (Subprotocol::JsonReliable, Some(RELIABLE.to_owned())));
    assert_eq!(asking.decide().unwrap().websocket_key, "dGhlIHNhbXBsZSBub25jZQ==");
}

#[test]
fn what_is_no_upgrade_is_refused_before_anything_else() {
    let no_upgrade = [
        asking(None, "").without("upgrade"),
        asking(None, "").header("upgrade", "h2c"),
        asking(None, "").header("connection", "keep-alive"),
        asking(None, "").without("sec-websocket-key"),
        asking(None, "").header("sec-websocket-key", "abc"),
        asking(None, "").header("sec-websocket-key", "c2hvcnQ="),
        asking(None, "").more("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        asking(None, "").header("content-length", "21"),
        asking(None, "").header("transfer-encoding", "chunked"),
        asking(None, "").header("sec-websocket-version", "8"),
        Asking { method: Method::POST, ..asking(None, "") },
        Asking { version: Version::HTTP_10, ..asking(None, "") },
    ];
    for (number, asking) in no_upgrade.iter().enumerate() {
        assert_eq!(asking.refusal(), Some(Refusal::NotAnUpgrade), "{number}");
    }
    let lists = allowed(Some("chat"), "")
        .header("connection", "keep-alive")
        .more("connection", "x, UPGRADE")
        .header("upgrade", "h2c, WebSocket");
    assert_eq!(lists.refusal(), None);
}

#[test]
fn the_hub_comes_from_the_path_or_the_query_and_the_path_wins() {
    assert_eq!(allowed(None, "&hub=chat").begin().hub.as_str(), "chat");
    assert_eq!(allowed(Some("chat"), "&hub=other").begin().hub.as_str(), "chat");
    for missing in [asking(None, ""), asking(None, "hub=+"), asking(Some(" "), "hub=chat")] {
        assert_eq!(missing.refusal(), Some(Refusal::NoHub));
    }
    assert_eq!(asking(Some("a-b"), "").refusal(), Some(Refusal::BadHub));
    assert_eq!(asking(None, "hub=%FF").refusal(), Some(Refusal::BadQuery));
    assert_eq!(allowed(Some("chat"), "&utm=%FF").begin().hub.as_str(), "chat");
}

#[test]
fn a_token_is_needed_and_has_to_be_good() {
    assert_eq!(asking(Some("chat"), "").refusal(), Some(Refusal::NoToken));
    assert_eq!(asking(Some("chat"), "access_token=").refusal(), Some(Refusal::NoToken));
    assert_eq!(
        asking(Some("chat"), "access_token=x").refusal(),
        Some(Refusal::BadToken(TokenError::Malformed))
    );
    let expired = token_with(&[], 60, NOW - 3600);
    assert_eq!(
        asking(Some("chat"), &format!("access_token={expired}")).refusal(),
        Some(Refusal::BadToken(TokenError::Expired))
    );
    for wrong_audience in
        [allowed(Some("other"), ""), allowed(Some("chat"), "").header("host", "else.example")]
    {
        let refusal = wrong_audience.refusal();
        assert!(matches!(refusal, Some(Refusal::BadToken(TokenError::WrongAudience(_)))), "{refusal:?}");
    }
}

#[test]
fn the_query_wins_over_the_authorization_header() {
    let in_header = asking(Some("chat"), "").header("authorization", &format!("bEARER {}", token()));
    assert_eq!(in_header.refusal(), None);
    let both = allowed(Some("chat"), "").header("authorization", "Bearer x");
    assert_eq!(both.refusal(), None);
    let worse =
        asking(Some("chat"), "access_token=x").header("authorization", &format!("Bearer {}", token()));
    assert_eq!(worse.refusal(), Some(Refusal::BadToken(TokenError::Malformed)));
    for no_bearer in ["Basic x", "Bearer", "Bearer "] {
        let asking = asking(Some("chat"), "").header("authorization", no_bearer);
        assert_eq!(asking.refusal(), Some(Refusal::NoToken), "{no_bearer}");
    }
}

#[test]
fn anonymous_clients_come_in_where_the_hub_allows_it_and_bad_tokens_nowhere() {
    let mut config = Config::default();
    config.hubs.insert("open".to_owned(), HubOverrides { anonymous: true, ..HubOverrides::default() });
    let asking = |hub, query| Asking { config: config.clone(), ..asking(Some(hub), query) };
    let begin = asking("OPEN", "").begin();
    assert_eq!((begin.user_id, begin.roles.len(), begin.groups.len()), (None, 0, 0));
    assert_eq!(asking("chat", "").refusal(), Some(Refusal::NoToken));
    let bad = asking("open", "access_token=x").refusal();
    assert_eq!(bad, Some(Refusal::BadToken(TokenError::Malformed)));
}

#[test]
fn a_tokens_groups_are_checked_before_the_raw_parameters() {
    let bad_group = token_with(&["good", " "], 60, NOW);
    let asking = asking(Some("chat"), &format!("access_token={bad_group}&webpubsub_mode=nonsense"));
    assert_eq!(asking.refusal(), Some(Refusal::BadGroup));
    assert_eq!(allowed(Some("chat"), "&webpubsub_mode=nonsense").refusal(), Some(Refusal::BadMode));
}

#[test]
fn the_first_known_subprotocol_is_selected_in_the_clients_spelling() {
    let offering = |offer: &str| allowed(Some("chat"), "").header("sec-websocket-protocol", offer).selected();
    assert_eq!(
        offering("graphql-ws, JSON.WebPubSub.azure.v1, json.reliable.webpubsub.azure.v1"),
        (Subprotocol::Json, Some("JSON.WebPubSub.azure.v1".to_owned()))
    );
    assert_eq!(offering("graphql-ws"), (Subprotocol::Raw, None));
    let none = allowed(Some("chat"), "").without("sec-websocket-protocol");
    assert_eq!(none.selected(), (Subprotocol::Raw, None));
    let two_lines = none.more("sec-websocket-protocol", "a").more("sec-websocket-protocol", RELIABLE);
    assert_eq!(two_lines.selected(), (Subprotocol::JsonReliable, Some(RELIABLE.to_owned())));
}

#[test]
fn a_recovery_needs_no_access_token_and_takes_no_harm_from_a_bad_one() {
    let query = "awps_connection_id=c%201&awps_reconnection_token=secret";
    for more in ["", "&access_token=x", "&webpubsub_mode=nonsense"] {
        let handshake = asking(Some("Chat"), &format!("{query}{more}")).decide().unwrap();
        let Purpose::Recover(recover) = handshake.purpose else { panic!("no recovery") };
        assert_eq!(recover.hub.as_str(), "chat");
        assert_eq!(recover.connection_id.as_str(), "c 1");
        assert_eq!(recover.reconnection_token, "secret");
        assert_eq!(handshake.selected.subprotocol, Subprotocol::JsonReliable);
    }
}

#[test]
fn a_reconnection_token_alone_makes_no_recovery() {
    for query in ["awps_reconnection_token=t", "awps_connection_id=&awps_reconnection_token=t"] {
        assert_eq!(asking(Some("chat"), query).refusal(), Some(Refusal::NoToken));
        assert_eq!(allowed(Some("chat"), &format!("&{query}")).refusal(), None);
    }
}

/// An HTTP status would be taken for a failure that passes, and the client would go on trying.
#[test]
fn a_recovery_that_can_never_succeed_gets_its_upgrade() {
    let with_token = "awps_connection_id=c&awps_reconnection_token=t";
    assert!(asking(Some("chat"), "awps_connection_id=c").is_unrecoverable());
    assert!(asking(Some("chat"), "awps_connection_id=c&awps_reconnection_token=").is_unrecoverable());
    assert!(asking(Some("no-hub"), with_token).is_unrecoverable());
    for offer in ["json.webpubsub.azure.v1", "graphql-ws"] {
        let asking = asking(Some("chat"), with_token).header("sec-websocket-protocol", offer);
        assert!(asking.is_unrecoverable(), "{offer}");
    }
    let strict = asking(Some("chat"), with_token).header("sec-websocket-protocol", "Json.webpubsub.azure.v1");
    assert_eq!(strict.selected().1.as_deref(), Some("Json.webpubsub.azure.v1"), "else strict clients fail");
}

#[test]
fn a_clients_frames_are_events_unless_it_says_where_to_publish_them() {
    let publishing = || allowed(Some("chat"), "&webpubsub_mode=sendToGroup&group=g&noEcho=true");
    let target = Some(RawTarget { group: GroupName::new("g").unwrap(), no_echo: true });
    assert_eq!(publishing().without("sec-websocket-protocol").begin().publishes_to, target);
    assert_eq!(publishing().header("sec-websocket-protocol", "graphql-ws").begin().publishes_to, target);
    // Whether it is raw is not certain yet: its handler may choose.
    assert_eq!(publishing().begin().publishes_to, target);
    let events = allowed(Some("chat"), "&group=g").without("sec-websocket-protocol");
    assert_eq!(events.begin().publishes_to, None);
}

#[test]
fn a_recovery_selects_the_reliable_subprotocol_wherever_it_stands() {
    let asking = asking(Some("chat"), "awps_connection_id=c&awps_reconnection_token=t")
        .header("sec-websocket-protocol", "json.webpubsub.azure.v1, json.reliable.webpubsub.azure.v1");
    assert_eq!(asking.selected().0, Subprotocol::JsonReliable);
    assert!(!asking.is_unrecoverable());
}

#[test]
fn a_refusals_text_repeats_nothing_of_the_request() {
    let asking = asking(Some("chat"), "access_token=my-secret-token");
    let refusal = asking.refusal().unwrap();
    assert!(!format!("{refusal} {refusal:?}").contains("my-secret"));
}

#[test]
fn a_clients_fault_and_a_passing_failure_have_different_statuses() {
    let statuses = [
        (Refusal::NotAnUpgrade, 400),
        (Refusal::BadQuery, 400),
        (Refusal::NoHub, 400),
        (Refusal::BadHub, 400),
        (Refusal::NoToken, 401),
        (Refusal::BadToken(TokenError::Expired), 401),
        (Refusal::BadGroup, 400),
        (Refusal::TooManyGroups, 400),
        (Refusal::BadMode, 400),
        (Refusal::ByHandler(401), 401),
        (Refusal::ByHandler(403), 403),
        (Refusal::ByHandler(429), 429),
        (Refusal::ByHandler(503), 503),
        (Refusal::ByHandler(101), 500),
        (Refusal::ByHandler(204), 500),
        (Refusal::ByHandler(1000), 500),
        (Refusal::HandlerFailed, 500),
        (Refusal::HandlerFailedWith(502), 502),
        (Refusal::HandlerBusy, 503),
        (Refusal::Full, 503),
        (Refusal::Unavailable, 503),
    ];
    for (refusal, status) in statuses {
        assert_eq!(refusal.status(), status, "{refusal:?}");
    }
}
