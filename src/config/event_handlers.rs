//! The settings of an event handler: the application's HTTP endpoint that is asked and told about sessions.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use oncewire_protocol::wire::EventName;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::url_template::{environment, variable_name};
use super::{ConfigWarning, Secret, UrlTemplate};

/// One `[[hubs."name".event_handlers]]`. The field names are the keys.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventHandler {
    /// Where its requests go: an absolute `http` or `https` URL. No default. In path and query, not in the host, `{hub}`
    /// stands for the hub, `{event}` for the event's name (`validate` when the gateway asks for leave to send, see
    /// [`EventHandler::abuse_protection`]) and `{env:NAME}` for an environment variable, which is the place for a secret;
    /// values are percent-escaped. Any other brace is written as `%7B` or `%7D`. HTTP/2 is spoken over TLS where the
    /// handler offers it, else HTTP/1.1; redirects are not followed. Danger: over plain `http` everything that clients
    /// send can be read on the way.
    pub url_template: UrlTemplate,

    /// Which user events it takes: `*` for all, a name, or several with commas between; case makes no difference.
    /// Default none.
    #[serde(default)]
    pub user_event_pattern: Option<UserEventPattern>,

    /// Which events of sessions it takes: `connect` (asked before a session begins), `connected`, `disconnected`.
    /// Default none. Cost: with `connect` each new session waits for the handler.
    #[serde(default)]
    pub system_events: Vec<SystemEvent>,

    /// Whether the handler is asked, before the first event and then again each minute, if it wants events of this gateway
    /// (`WebHook-Allowed-Origin`). Default `true`. Danger: without it a wrong URL sends requests to a server that did not
    /// ask for them.
    #[serde(default = "yes")]
    pub abuse_protection: bool,

    /// How long one event may take, in seconds, with all attempts and the reading of the answer. Default 100, 1 to 600.
    /// Cost: the client's later requests wait as long. Danger: a client that waits for `connect` may give up earlier;
    /// [`Config::handshake_timeout_seconds`](super::Config::handshake_timeout_seconds) does not count meanwhile.
    #[serde(default = "timeout_seconds")]
    pub timeout_seconds: u64,

    /// How long to wait before each further attempt, in seconds: after a network error, 408 or a status from 500. Default
    /// `[1, 3, 5]`; at most 10 entries of 0 to 60; `[]` for a single attempt. Cost: while a handler is down, each event
    /// waits for all of them before it fails. An attempt that is repeated has the same `ce-id`, by which the handler can
    /// tell.
    #[serde(default = "retry_after_seconds")]
    pub retry_after_seconds: Vec<u64>,

    /// How many events may be under way to it at once; then `connect` is refused with 503, and a user event as if the
    /// handler had failed. Default 4,096, 1 to 100,000. Cost: with HTTP/1.1 a connection, and so a descriptor, each, on
    /// both sides.
    #[serde(default = "requests_max")]
    pub requests_max: usize,

    /// A token that is sent with each event as `Authorization: Bearer`; always `{env:NAME}`, an environment variable. No
    /// default.
    #[serde(default, deserialize_with = "secret_of_environment")]
    pub bearer_token: Option<Secret>,

    /// File with the certificates, in PEM, of the authorities that may vouch for the handler's `https`. Default: those that
    /// the system trusts. It is read at the start, and when the settings of this handler change.
    #[serde(default)]
    pub tls_ca: Option<PathBuf>,
}

/// User events that a handler takes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum UserEventPattern {
    /// All.
    All,
    /// Those of these names, which are in lower case.
    Names(Vec<String>),
}

/// An event of a session's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SystemEvent {
    /// A session would begin: the handler is asked.
    Connect,
    /// A session has begun.
    Connected,
    /// A session is over.
    Disconnected,
}

/// What becomes of a session whose user event was not handled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EventFailure {
    /// It goes on, and its client is told in the acknowledgement.
    #[default]
    Ack,
    /// It is closed.
    Close,
}

/// Why a text is no pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadUserEventPattern {
    /// There is nothing, or nothing between two commas.
    #[error("an event's name is missing: for no user events leave the key out")]
    NoName,
    /// A `*` beside other characters.
    #[error("* stands for all user events and only alone: wildcards inside names are not supported")]
    Wildcard,
    /// No event can have this name.
    #[error("{0:?} is no event's name: a letter, then letters, digits, _, . or -")]
    BadName(String),
}

impl UserEventPattern {
    /// Whether events of this name are among them.
    pub fn takes(&self, event: &str) -> bool {
        match self {
            Self::All => true,
            Self::Names(names) => names.iter().any(|name| name.eq_ignore_ascii_case(event)),
        }
    }
}

impl TryFrom<String> for UserEventPattern {
    type Error = BadUserEventPattern;

    fn try_from(text: String) -> Result<Self, BadUserEventPattern> {
        if text.trim() == "*" {
            return Ok(Self::All);
        }
        let name = |item: &str| {
            if item.is_empty() {
                return Err(BadUserEventPattern::NoName);
            }
            if item.contains(['*', '?', '\\']) {
                return Err(BadUserEventPattern::Wildcard);
            }
            EventName::new(item).map_err(|_| BadUserEventPattern::BadName(item.to_owned()))?;
            Ok(item.to_ascii_lowercase())
        };
        text.split(',').map(|item| name(item.trim())).collect::<Result<_, _>>().map(Self::Names)
    }
}

/// Every number of a handler, with its key and its range. `prefix` is the handler's own.
pub(super) fn numbers(
    prefix: &str,
    handler: &EventHandler,
) -> impl Iterator<Item = (String, u64, RangeInclusive<u64>)> {
    let delays = &handler.retry_after_seconds;
    let whole = [
        ("timeout_seconds", handler.timeout_seconds, 1..=600),
        ("retry_after_seconds (entries)", delays.len() as u64, 0..=10),
        ("requests_max", handler.requests_max as u64, 1..=100_000),
    ];
    let each = delays.iter().map(|delay| ("retry_after_seconds", *delay, 0..=60));
    whole.into_iter().chain(each).map(move |(key, value, range)| (format!("{prefix}{key}"), value, range))
}

/// What deserves attention in a hub's handlers. `prefix` is the hub's.
pub(super) fn warnings(prefix: &str, handlers: &[EventHandler]) -> Vec<ConfigWarning> {
    let mut warnings = Vec::new();
    for (index, handler) in handlers.iter().enumerate() {
        let key = |name: &str| format!("{}{name}", handler_prefix(prefix, index));
        if !handler.abuse_protection {
            warnings.push(ConfigWarning::NoAbuseProtection { key: key("abuse_protection") });
        }
        if handler.bearer_token.is_some() && handler.url_template.is_in_the_clear() {
            warnings.push(ConfigWarning::TokenInTheClear { key: key("bearer_token") });
        }
        if !takes_any(handler, &handlers[..index]) {
            let key = key("").trim_end_matches('.').to_owned();
            warnings.push(ConfigWarning::IdleEventHandler { key });
        }
    }
    warnings
}

pub(super) fn handler_prefix(hub_prefix: &str, index: usize) -> String {
    format!("{hub_prefix}event_handlers[{index}].")
}

/// Whether a handler takes an event that none of those before it takes.
fn takes_any(handler: &EventHandler, before: &[EventHandler]) -> bool {
    let takes_system = |event: &SystemEvent| !before.iter().any(|other| other.system_events.contains(event));
    let patterns = || before.iter().filter_map(|other| other.user_event_pattern.as_ref());
    let takes_user = match &handler.user_event_pattern {
        None => false,
        Some(UserEventPattern::All) => !patterns().any(|pattern| *pattern == UserEventPattern::All),
        Some(UserEventPattern::Names(names)) => {
            names.iter().any(|name| !patterns().any(|pattern| pattern.takes(name)))
        }
    };
    takes_user || handler.system_events.iter().any(takes_system)
}

fn yes() -> bool {
    true
}

fn timeout_seconds() -> u64 {
    100
}

fn retry_after_seconds() -> Vec<u64> {
    vec![1, 3, 5]
}

fn requests_max() -> usize {
    4096
}

/// No text of a refusal holds what stands in the file: it may be the secret itself, put there by mistake.
fn secret_of_environment<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Secret>, D::Error> {
    let reference = Secret::deserialize(deserializer)?;
    let inside = reference.expose().strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    let name = inside.and_then(variable_name).filter(|name| !name.contains(['{', '}'])).ok_or_else(|| {
        D::Error::custom("expected {env:NAME}, the environment variable that holds the token")
    })?;
    let token = environment(name)
        .ok_or_else(|| D::Error::custom(format!("the environment variable {name} is not set, or empty")))?;
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(D::Error::custom(format!(
            "the environment variable {name} holds what no token may hold"
        )));
    }
    Ok(Some(Secret::new(token)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, ConfigError, Overrides};

    fn read(handlers: &str) -> Result<Config, ConfigError> {
        Config::from_toml(handlers, Overrides::default())
    }

    /// A handler of the hub `chat` with these keys, and its settings.
    fn handler(keys: &str) -> Result<EventHandler, String> {
        let text =
            format!("[[hubs.\"chat\".event_handlers]]\nurl_template = \"http://127.0.0.1:3000/\"\n{keys}");
        let config = read(&text).map_err(|error| error.to_string())?;
        Ok(config.hubs["chat"].event_handlers[0].clone())
    }

    fn pattern(text: &str) -> Result<UserEventPattern, BadUserEventPattern> {
        text.to_owned().try_into()
    }

    #[test]
    fn what_is_left_out_has_the_documented_default() {
        let handler = handler("").unwrap();
        assert_eq!(handler.user_event_pattern, None);
        assert_eq!(handler.system_events, []);
        assert!(handler.abuse_protection);
        assert_eq!((handler.timeout_seconds, handler.requests_max), (100, 4096));
        assert_eq!(handler.retry_after_seconds, [1, 3, 5]);
        assert_eq!((handler.bearer_token, handler.tls_ca), (None, None));
        assert_eq!(read("").unwrap().hub("chat").on_event_failure, EventFailure::Ack);
    }

    #[test]
    fn every_key_can_be_set_and_the_order_of_the_file_is_kept() {
        // Cargo sets the variable for its tests.
        let config = read(
            r#"
            [hubs."Chat"]
            on_event_failure = "close"
            [[hubs."Chat".event_handlers]]
            url_template = "https://first.example/{event}?code={env:CARGO_PKG_NAME}"
            user_event_pattern = "order.placed, Order.Paid"
            system_events = ["connect", "connected", "disconnected"]
            abuse_protection = false
            timeout_seconds = 7
            retry_after_seconds = []
            requests_max = 8
            bearer_token = "{env:CARGO_PKG_NAME}"
            tls_ca = "/etc/ca.pem"
            [[hubs."Chat".event_handlers]]
            url_template = "http://second.example/"
            user_event_pattern = "*"
            "#,
        )
        .unwrap();
        let [first, second] = &*config.hubs["chat"].event_handlers else { panic!("two handlers") };
        let url = first.url_template.of_hub("chat").unwrap().of_event("e");
        assert_eq!(url, "https://first.example/e?code=oncewire");
        let names = ["order.placed", "order.paid"].map(str::to_owned).to_vec();
        assert_eq!(first.user_event_pattern, Some(UserEventPattern::Names(names)));
        let all = [SystemEvent::Connect, SystemEvent::Connected, SystemEvent::Disconnected];
        assert_eq!(first.system_events, all);
        assert!(!first.abuse_protection);
        assert_eq!((first.timeout_seconds, first.requests_max), (7, 8));
        assert_eq!(first.retry_after_seconds, [0_u64; 0]);
        assert_eq!(first.bearer_token.as_ref().map(Secret::expose), Some("oncewire"));
        assert_eq!(first.tls_ca, Some("/etc/ca.pem".into()));
        assert_eq!(second.user_event_pattern, Some(UserEventPattern::All));
        assert_eq!(config.hub("CHAT").on_event_failure, EventFailure::Close);
        assert_eq!(config.hub("other").on_event_failure, EventFailure::Ack);
    }

    #[test]
    fn a_pattern_is_a_star_or_a_list_of_names() {
        assert_eq!(pattern(" * "), Ok(UserEventPattern::All));
        let list = pattern("Chat.say , order-placed").unwrap();
        for (event, expected) in
            [("chat.SAY", true), ("order-placed", true), ("chat", false), ("chat.say.more", false)]
        {
            assert_eq!(list.takes(event), expected, "{event}");
        }
        for (text, error) in [
            ("", BadUserEventPattern::NoName),
            ("a,,b", BadUserEventPattern::NoName),
            ("a,", BadUserEventPattern::NoName),
            ("chat.*", BadUserEventPattern::Wildcard),
            ("**", BadUserEventPattern::Wildcard),
            ("a,*", BadUserEventPattern::Wildcard),
            ("c?at", BadUserEventPattern::Wildcard),
            ("two words", BadUserEventPattern::BadName("two words".to_owned())),
            ("1st", BadUserEventPattern::BadName("1st".to_owned())),
        ] {
            assert_eq!(pattern(text), Err(error), "{text:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_refused_by_key() {
        for (keys, part) in [
            ("user_event_pattern = \"a.*\"", "event_handlers[0].user_event_pattern: * stands for all"),
            ("system_events = [\"closed\"]", "event_handlers[0].system_events"),
            ("timeout = 5", "unknown key hubs.chat.event_handlers[0].timeout"),
            ("timeout_seconds = 0", "hubs.\"chat\".event_handlers[0].timeout_seconds = 0 is out of range"),
            ("timeout_seconds = 601", "1 to 600"),
            ("requests_max = 0", "1 to 100000"),
            ("requests_max = 100001", "1 to 100000"),
            ("retry_after_seconds = [1, 61]", "retry_after_seconds = 61"),
            ("retry_after_seconds = [0,0,0,0,0,0,0,0,0,0,0]", "retry_after_seconds (entries) = 11"),
            ("bearer_token = \"{env:ONCEWIRE_NOT_SET}\"", "ONCEWIRE_NOT_SET is not set"),
        ] {
            let message = handler(keys).unwrap_err();
            assert!(message.contains(part), "{keys}: {message}");
        }
        for (key, value) in [
            ("timeout_seconds", "600"),
            ("requests_max", "100000"),
            ("retry_after_seconds", "[60, 0, 0, 0, 0, 0, 0, 0, 0, 60]"),
        ] {
            assert!(handler(&format!("{key} = {value}")).is_ok(), "{key}");
        }
        let message = read("[[hubs.chat.event_handlers]]\n").unwrap_err().to_string();
        assert!(message.contains("url_template"), "{message}");
        let message =
            read("[[hubs.chat.event_handlers]]\nurl_template = \"tunnel:///x\"").unwrap_err().to_string();
        assert!(
            message.contains("line 2") && message.contains("url_template: no tunnel is needed"),
            "{message}"
        );
    }

    #[test]
    fn no_output_holds_a_secret() {
        const SECRET: &str = "Zq9hidden";
        for bad in [
            format!("bearer_token = \"{SECRET}\""),
            format!("bearer_token = \"{{env:{SECRET}\""),
            format!("bearer_token = [\"{SECRET}\"]"),
            format!("url_template = \"http://a.example/?code={SECRET}{{\""),
            format!("url_template = \"http://a.example/?code={{{SECRET}}}\""),
            format!("url_template = \"http://u:{SECRET}@a.example/\""),
            format!("url_template = [\"http://a.example/?code={SECRET}\"]"),
        ] {
            let error = read(&format!("[[hubs.chat.event_handlers]]\n{bad}")).unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains(SECRET), "{shown}");
        }
        let good = read(&format!(
            "[[hubs.chat.event_handlers]]\nurl_template = \"http://a.example/{{env:CARGO_MANIFEST_DIR}}?c={SECRET}\"\n\
             bearer_token = \"{{env:CARGO_MANIFEST_DIR}}\""
        ))
        .unwrap();
        let shown = format!("{good:?} {:?}", good.warnings());
        let value = env!("CARGO_MANIFEST_DIR");
        assert!(!shown.contains(SECRET) && !shown.contains(value), "{shown}");
    }

    #[test]
    fn doubtful_handlers_warn() {
        let warnings = |text: &str| read(text).unwrap().warnings();
        let handler = |url: &str, keys: &str| {
            format!("[[hubs.chat.event_handlers]]\nurl_template = \"{url}\"\n{keys}\n")
        };
        let (local, remote) = ("http://127.0.0.1/", "http://a.example/");
        let (takes_all, token) = ("user_event_pattern = \"*\"", "bearer_token = \"{env:CARGO_PKG_NAME}\"");
        let key = |name: &str| format!("hubs.\"chat\".event_handlers[0].{name}");
        assert_eq!(warnings(&handler(local, takes_all)), []);
        assert_eq!(warnings(&handler(local, &format!("{takes_all}\n{token}"))), []);
        assert_eq!(
            warnings(&handler(remote, &format!("{takes_all}\n{token}\nabuse_protection = false"))),
            [
                ConfigWarning::NoAbuseProtection { key: key("abuse_protection") },
                ConfigWarning::TokenInTheClear { key: key("bearer_token") }
            ]
        );
        let idle = |index: usize| ConfigWarning::IdleEventHandler {
            key: format!("hubs.\"chat\".event_handlers[{index}]"),
        };
        assert_eq!(warnings(&handler(local, "")), [idle(0)]);
        let second = |keys: &str| {
            let first = handler(local, "user_event_pattern = \"a,b\"\nsystem_events = [\"connect\"]");
            warnings(&format!("{first}{}", handler(local, keys)))
        };
        assert_eq!(second("user_event_pattern = \"B\"\nsystem_events = [\"connect\"]"), [idle(1)]);
        assert_eq!(second("user_event_pattern = \"b,c\""), []);
        assert_eq!(second("system_events = [\"connected\"]"), []);
        assert_eq!(second(takes_all), []);
    }
}
