//! From file and overrides to a checked configuration.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use oncewire_protocol::wire::HubName;
use url::Url;

use super::addresses::are_in_conflict;
use super::event_handlers;
use super::hub::HubOverrides;
use super::unknown_key::advice;
use super::{AllowedOrigin, Config, ConfigError, ConfigWarning, Durability, Secret, Store};

/// What the command line and the environment say. What is set here wins over the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    /// See [`Config::listen`].
    pub listen: Option<SocketAddr>,
    /// See [`Config::default_listen`].
    pub default_listen: Option<SocketAddr>,
    /// See [`Config::admin_listen`].
    pub admin_listen: Option<SocketAddr>,
    /// See [`Config::tls_cert`].
    pub tls_cert: Option<PathBuf>,
    /// See [`Config::tls_key`].
    pub tls_key: Option<PathBuf>,
    /// See [`Config::tls_self_signed`].
    pub tls_self_signed: Option<bool>,
    /// See [`Config::tls_listen`].
    pub tls_listen: Option<SocketAddr>,
    /// See [`Config::access_key`].
    pub access_key: Option<Secret>,
    /// See [`Config::secondary_access_key`].
    pub secondary_access_key: Option<Secret>,
    /// See [`Config::public_urls`]; when not empty it replaces all of the file's.
    pub public_urls: Vec<Url>,
    /// See [`Config::allowed_origins`]; when not empty it replaces all of the file's.
    pub allowed_origins: Vec<AllowedOrigin>,
    /// See [`Config::store`].
    pub store: Option<Store>,
    /// See [`Config::data_dir`].
    pub data_dir: Option<PathBuf>,
    /// See [`Config::durability`].
    pub durability: Option<Durability>,
    /// See [`Config::demo`].
    pub demo: Option<bool>,
    /// See [`Config::start_with_damaged_hubs`].
    pub start_with_damaged_hubs: Option<bool>,
}

impl Config {
    /// Reads the file, if there is one, lays `overrides` over it, fills in the defaults, and checks the whole.
    ///
    /// # Errors
    /// When the file can't be read or understood, or a value is not allowed.
    pub fn load(file: Option<&Path>, overrides: Overrides) -> Result<Self, ConfigError> {
        let text = match file {
            None => String::new(),
            Some(path) => Self::read_file(path)?,
        };
        Self::from_toml(&text, overrides)
    }

    /// The text of a file.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn read_file(path: &Path) -> Result<String, ConfigError> {
        std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })
    }

    /// The same as [`Config::load`] for the text of a file.
    ///
    /// # Errors
    /// When the text can't be understood, or a value is not allowed.
    pub fn from_toml(text: &str, overrides: Overrides) -> Result<Self, ConfigError> {
        let mut config = parse(text)?;
        config.hubs = fold_names(config.hubs)?;
        config.apply(overrides);
        config.check()?;
        Ok(config)
    }

    fn apply(&mut self, overrides: Overrides) {
        let Overrides {
            listen,
            default_listen,
            admin_listen,
            tls_cert,
            tls_key,
            tls_self_signed,
            tls_listen,
            access_key,
            secondary_access_key,
            public_urls,
            allowed_origins,
            store,
            data_dir,
            durability,
            demo,
            start_with_damaged_hubs,
        } = overrides;
        self.listen = listen.or(self.listen);
        self.default_listen = default_listen.unwrap_or(self.default_listen);
        self.admin_listen = admin_listen.or(self.admin_listen);
        self.tls_cert = tls_cert.or(self.tls_cert.take());
        self.tls_key = tls_key.or(self.tls_key.take());
        self.tls_self_signed = tls_self_signed.unwrap_or(self.tls_self_signed);
        self.tls_listen = tls_listen.unwrap_or(self.tls_listen);
        self.access_key = access_key.or(self.access_key.take());
        self.secondary_access_key = secondary_access_key.or(self.secondary_access_key.take());
        if !public_urls.is_empty() {
            self.public_urls = public_urls;
        }
        if !allowed_origins.is_empty() {
            self.allowed_origins = allowed_origins;
        }
        self.store = store.unwrap_or(self.store);
        if let Some(data_dir) = data_dir {
            self.data_dir = data_dir;
        }
        self.durability = durability.or(self.durability);
        self.demo = demo.unwrap_or(self.demo);
        self.start_with_damaged_hubs = start_with_damaged_hubs.unwrap_or(self.start_with_damaged_hubs);
    }

    fn check(&self) -> Result<(), ConfigError> {
        if !self.public_urls.iter().all(is_base_url) {
            return Err(ConfigError::BadPublicUrl);
        }
        match (&self.tls_cert, &self.tls_key) {
            (Some(_), None) => return Err(ConfigError::NoTlsKey),
            (None, Some(_)) => return Err(ConfigError::NoTlsCertificate),
            (Some(_), Some(_)) if self.tls_self_signed => return Err(ConfigError::TwoTlsCertificates),
            (None, None) | (Some(_), Some(_)) => {}
        }
        self.check_listeners()?;
        for hub in self.hubs.keys() {
            HubName::new(hub).map_err(|error| ConfigError::BadHubName { hub: hub.clone(), error })?;
        }
        for (key, value, range) in self.numbers() {
            if !range.contains(&value) {
                let (minimum, maximum) = (*range.start(), *range.end());
                return Err(ConfigError::OutOfRange { key, value, minimum, maximum });
            }
        }
        Ok(())
    }

    fn check_listeners(&self) -> Result<(), ConfigError> {
        let there = self.listeners().into_iter().filter_map(|(listener, address)| Some((listener, address?)));
        let there: Vec<_> = there.collect();
        for (at, &second) in there.iter().enumerate() {
            if let Some(&first) = there.iter().take(at).find(|first| are_in_conflict(first.1, second.1)) {
                return Err(ConfigError::SamePort(Box::new([first, second])));
            }
        }
        Ok(())
    }

    /// Every number that is set, with its key and its range.
    fn numbers(&self) -> Vec<(String, u64, RangeInclusive<u64>)> {
        let whole = [
            ("websocket_message_bytes_max", self.websocket_message_bytes_max as u64, 1..=64 * MIB),
            ("websocket_read_buffer_bytes", self.websocket_read_buffer_bytes as u64, 64..=MIB),
            ("handshakes_pending_max", self.handshakes_pending_max as u64, 1..=1_000_000),
            ("http_connections_max", self.http_connections_max as u64, 1..=1_000_000),
            ("http_keep_alive_seconds", self.http_keep_alive_seconds, 1..=3600),
            ("http_write_timeout_seconds", self.http_write_timeout_seconds, 1..=300),
            (
                "connections_per_address_max",
                self.connections_per_address_max.unwrap_or(1) as u64,
                1..=10_000_000,
            ),
            ("header_read_timeout_seconds", self.header_read_timeout_seconds, 1..=300),
            ("handshake_timeout_seconds", self.handshake_timeout_seconds, 1..=300),
            ("request_timeout_seconds", self.request_timeout_seconds, 1..=300),
            ("http_body_bytes_max", self.http_body_bytes_max as u64, 0..=64 * MIB),
            ("connections_max", self.connections_max.unwrap_or(1) as u64, 1..=10_000_000),
            ("sessions_max", self.sessions_max.unwrap_or(1) as u64, 1..=100_000_000),
            ("sessions_per_user_max", self.sessions_per_user_max.unwrap_or(1) as u64, 1..=1_000_000),
            ("hubs_max", self.hubs_max.unwrap_or(1) as u64, 1..=1_000_000),
            ("message_memory_bytes_max", self.message_memory_bytes_max, 1..=1024 * GIB),
            ("pending_requests_max", self.pending_requests_max as u64, 1..=10_000),
            ("pending_request_bytes_max", self.pending_request_bytes_max as u64, 1..=GIB),
            ("pending_reply_bytes_max", self.pending_reply_bytes_max as u64, 1..=64 * MIB),
            ("groups_per_session_max", self.groups_per_session_max as u64, 1..=1_000_000),
            ("hub_shards", u64::from(self.hub_shards), 1..=64),
        ];
        let mut numbers: Vec<_> =
            whole.into_iter().map(|(key, value, range)| (key.to_owned(), value, range)).collect();
        numbers.extend(HubOverrides::general(self).numbers("", self));
        for (hub, own) in &self.hubs {
            let prefix = hub_prefix(hub);
            numbers.extend(own.numbers(&prefix, self));
            for (index, handler) in own.event_handlers.iter().enumerate() {
                numbers.extend(event_handlers::numbers(
                    &event_handlers::handler_prefix(&prefix, index),
                    handler,
                ));
            }
        }
        numbers
    }
}

/// What deserves attention in `config`.
pub(super) fn warnings(config: &Config) -> Vec<ConfigWarning> {
    let mut warnings = Vec::new();
    warnings.extend(config.demo.then_some(ConfigWarning::DemoForEverybody));
    let asks_for_https = config.tls_listen != Config::default().tls_listen && !config.is_tls_on();
    warnings.extend(asks_for_https.then_some(ConfigWarning::HttpsWithoutCertificate));
    let mut look = |prefix: &str, own: &HubOverrides| {
        let key = |name: &str| format!("{prefix}{name}");
        if own.session_retention_seconds.is_some_and(|seconds| seconds < 30) {
            warnings.push(ConfigWarning::ShortRetention { key: key("session_retention_seconds") });
        }
        if own.ack_window_ids.is_some_and(|ids| ids < 1000) {
            warnings.push(ConfigWarning::ShortAckWindow { key: key("ack_window_ids") });
        }
        let is_disk = matches!(own.durability, Some(Durability::Sync | Durability::Os));
        if config.store == Store::Memory && is_disk {
            warnings.push(ConfigWarning::DurabilityOfMemory { key: key("durability") });
        }
    };
    look("", &HubOverrides::general(config));
    for (hub, own) in &config.hubs {
        look(&hub_prefix(hub), own);
    }
    for (hub, own) in &config.hubs {
        warnings.extend(event_handlers::warnings(&hub_prefix(hub), &own.event_handlers));
    }
    warnings
}

const MIB: u64 = 1024 * 1024;
const GIB: u64 = 1024 * MIB;

fn hub_prefix(hub: &str) -> String {
    format!("hubs.{hub:?}.")
}

fn parse(text: &str) -> Result<Config, ConfigError> {
    let document = toml::Deserializer::parse(text).map_err(|error| refusal(&error, "", text))?;
    serde_path_to_error::deserialize(document)
        .map_err(|error| refusal(error.inner(), &error.path().to_string(), text))
}

/// The library's own rendering of an error quotes the line, which may hold an access key: only its message, the
/// key's path and the line number are used.
fn refusal(error: &toml::de::Error, key: &str, text: &str) -> ConfigError {
    let start = error.span().map_or(0, |span| span.start);
    let line = text.bytes().take(start).filter(|byte| *byte == b'\n').count() + 1;
    let message = error.message();
    if message.starts_with("unknown field") {
        let unknown = key.rsplit('.').next().unwrap_or_default();
        let advice = advice(unknown, message);
        return ConfigError::UnknownKey { line, key: key.to_owned(), advice };
    }
    let message = match key {
        "" | "." => message.to_owned(),
        key => format!("{key}: {}", in_plain_words(key, message)),
    };
    ConfigError::Malformed { line, message }
}

/// What the reader says of a value of the wrong kind, as somebody says it who does not know how it is read. The value is not
/// repeated: it may be a secret.
fn in_plain_words(key: &str, message: &str) -> String {
    let Some((found, expected)) =
        message.strip_prefix("invalid ").and_then(|rest| rest.rsplit_once(", expected "))
    else {
        return message.to_owned();
    };
    let name = key.rsplit('.').next().unwrap_or_default();
    match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" if found.starts_with("value: integer") => {
            "the number is out of range".to_owned()
        }
        "u8" | "u16" | "u32" | "u64" | "usize" => {
            format!("it wants a whole number without quotes: {name} = 1")
        }
        "a boolean" => format!("it wants true or false, without quotes: {name} = true"),
        "a string" | "path string" => format!("it wants a text in quotes: {name} = \"…\""),
        "a sequence" => format!("it wants a list: {name} = [\"…\"]"),
        _ if expected.starts_with("struct ") || expected == "a map" => {
            "it is a section, with keys of its own".to_owned()
        }
        _ => message.to_owned(),
    }
}

fn fold_names(hubs: BTreeMap<String, HubOverrides>) -> Result<BTreeMap<String, HubOverrides>, ConfigError> {
    let mut folded = BTreeMap::new();
    for (name, own) in hubs {
        let hub = name.to_ascii_lowercase();
        if folded.insert(hub.clone(), own).is_some() {
            return Err(ConfigError::HubTwice { hub });
        }
    }
    Ok(folded)
}

fn is_base_url(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https")
        && url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none()
}
