//! What can be wrong, or doubtful, with a configuration. No text here holds a secret.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use oncewire_protocol::wire::NameError;

use super::Listener;

/// Why a configuration was refused. Each message names the key.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("can't read the configuration file {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file has a key that doesn't exist.
    #[error("configuration file, line {line}: unknown key {key}{}", hint(.advice))]
    UnknownKey {
        /// The line, from 1.
        line: usize,
        /// The key with its section.
        key: String,
        /// Which key may be meant.
        advice: Option<String>,
    },
    /// The file is not TOML, or a key has the wrong type.
    #[error("configuration file, line {line}: {message}")]
    Malformed {
        /// The line, from 1.
        line: usize,
        /// What is wrong, with the key.
        message: String,
    },
    /// A number lies outside its range.
    #[error("{key} = {value} is out of range: {minimum} to {maximum}")]
    OutOfRange {
        /// The key.
        key: String,
        /// The number given.
        value: u64,
        /// The smallest number allowed.
        minimum: u64,
        /// The largest number allowed.
        maximum: u64,
    },
    /// A public URL is no `http` or `https` URL, or has a user, a query or a fragment.
    #[error(
        "public_urls: each must be an http or https URL without user, query and fragment, \
         such as https://chat.example.com/prefix"
    )]
    BadPublicUrl,
    /// There is a certificate without its key.
    #[error("tls_cert is set and tls_key is not: TLS needs both (--tls-cert and --tls-key)")]
    NoTlsKey,
    /// There is a key without its certificate.
    #[error("tls_key is set and tls_cert is not: TLS needs both (--tls-cert and --tls-key)")]
    NoTlsCertificate,
    /// There is a certificate, and one is to be made.
    #[error(
        "tls_cert and tls_self_signed are both set: TLS takes one certificate (--tls-cert or --tls-self-signed)"
    )]
    TwoTlsCertificates,
    /// Two listeners want the same port.
    #[error("{}", same_port(.0))]
    SamePort(Box<[(Listener, SocketAddr); 2]>),
    /// Two sections name the same hub: hubs are told apart without regard to case.
    #[error("hubs.{hub:?} is there twice: hub names are compared without regard to case")]
    HubTwice {
        /// The hub, in lower case.
        hub: String,
    },
    /// A section names no hub.
    #[error("hubs.{hub:?}: {error}")]
    BadHubName {
        /// The hub.
        hub: String,
        /// What is wrong with its name.
        error: NameError,
    },
}

fn same_port([(first, first_address), (second, second_address)]: &[(Listener, SocketAddr); 2]) -> String {
    format!(
        "{} ({first_address}) and {} ({second_address}) want the same port: give each one of its own ({} and {})",
        first.key, second.key, first.flag, second.flag
    )
}

fn hint(advice: &Option<String>) -> String {
    advice.as_ref().map_or_else(String::new, |advice| format!(": {advice}"))
}

/// What deserves attention without being wrong. Each message names the key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigWarning {
    /// There is an address for https, and no certificate.
    #[error(
        "tls_listen is set, and https is not served: it needs tls_cert and tls_key, or tls_self_signed (--tls-cert and \
         --tls-key, or --tls-self-signed)"
    )]
    HttpsWithoutCertificate,
    /// Official clients try to resume for 30 seconds.
    #[error("{key} is below 30: a client that is still trying to resume may find its session gone")]
    ShortRetention {
        /// The key.
        key: String,
    },
    /// Web PubSub remembers 1,000 ack ids.
    #[error("{key} is below 1000: a request that a client repeats may be executed twice")]
    ShortAckWindow {
        /// The key.
        key: String,
    },
    /// The demo is for everybody.
    #[error(
        "demo is on: everybody who reaches this gateway gets access tokens for the hub demo, and can cut its sockets"
    )]
    DemoForEverybody,
    /// The memory store is as durable as memory.
    #[error("{key} has no effect with the memory store: nothing survives the process")]
    DurabilityOfMemory {
        /// The key.
        key: String,
    },
    /// Requests go to whoever is at the URL.
    #[error(
        "{key} is off: events are sent to whatever server the URL leads to, whether it wants them or not"
    )]
    NoAbuseProtection {
        /// The key.
        key: String,
    },
    /// The token can be read on the way.
    #[error("{key} is sent over plain http to another machine: whoever reads it on the way can use it")]
    TokenInTheClear {
        /// The key.
        key: String,
    },
    /// No event reaches the handler.
    #[error("{key} gets no event: it takes none, or none that those before it leave")]
    IdleEventHandler {
        /// The handler.
        key: String,
    },
}
