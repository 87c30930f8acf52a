//! The configuration: one flat TOML file, with the command line and the environment laid over it.
//!
//! Knows: every key with its unit, default, range, cost and danger, and in which order sources override each other:
//! flags, then environment, then file, then default.
//!
//! Does not know: how flags are spelled, and what the settings do to the parts that take them.
//!
//! No error, warning or `Debug` output holds an access key, the query of an event handler's URL or a secret of the
//! environment.

mod address_range;
mod addresses;
mod error;
mod event_handlers;
mod hub;
mod load;
mod origin;
mod secret;
mod unknown_key;
mod url_template;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use serde::Deserialize;
use url::Url;

pub use address_range::{AddressRange, BadAddressRange};
pub use addresses::{BadListenAddress, BadPublicUrl, Listener, is_loopback, listen_address, public_url};
pub use error::{ConfigError, ConfigWarning};
pub use event_handlers::{BadUserEventPattern, EventFailure, EventHandler, SystemEvent, UserEventPattern};
pub use hub::{HubOverrides, HubSettings};
pub use load::Overrides;
pub use origin::{AllowedOrigin, BadOrigin};
pub use secret::Secret;
pub use unknown_key::variable_advice;
pub use url_template::{BadUrlTemplate, EventUrl, UrlTemplate};

/// Everything that can be set. The field names are the keys of the TOML file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Address and port for plain http; a name such as `localhost` may stand for the address. Default that of
    /// [`Config::default_listen`], or none where TLS is on: then plain http is served beside it only if this key is set.
    /// Port 0 picks a free one. Danger: an address that others can reach carries
    /// tokens in the clear unless a proxy in front ends TLS.
    #[serde(deserialize_with = "addresses::optional_listen")]
    pub listen: Option<SocketAddr>,

    /// Where plain http is served if [`Config::listen`] is not set and TLS is off. Default `127.0.0.1:7080`. It is for images
    /// and packages, which want another default without asking for plain http beside TLS.
    #[serde(deserialize_with = "addresses::listen")]
    pub default_listen: SocketAddr,

    /// Address and port of a listener of its own for what an operator's machinery asks: `/api/health`, `/livez` and
    /// `/metrics`, over plain http. No default: then health and `/livez` are found with the clients only, where they are in
    /// any case, and metrics as [`Config::metrics`] says. Port 0 picks a free one. Whatever strangers do to the other
    /// listeners, this one answers. Danger: it is open to everybody who reaches the address.
    pub admin_listen: Option<SocketAddr>,

    /// File with the certificate for TLS in PEM, followed by those between it and the authority's; turns TLS on. No
    /// default. It is read again when it changes, and so is [`Config::tls_key`].
    pub tls_cert: Option<PathBuf>,

    /// File with the certificate's private key in PEM, not encrypted. No default. Danger: whoever can read it can pass
    /// for this gateway.
    pub tls_key: Option<PathBuf>,

    /// Whether TLS is on with a certificate that the gateway makes for itself: for `localhost`, the loopback addresses and
    /// the hosts of [`Config::public_urls`]. Default `false`. It is good for a year, and kept in [`Config::data_dir`] with
    /// its key (`self-signed.pem`) and for clients to trust (`self-signed-certificate.pem`); a start within its last month,
    /// or with other names, makes another. With the memory store each start does. Danger: clients that don't check
    /// certificates talk to anybody.
    pub tls_self_signed: bool,

    /// Address and port for https. Default `127.0.0.1:8443`; port 0 picks a free one. Of no effect unless TLS is on.
    #[serde(deserialize_with = "addresses::listen")]
    pub tls_listen: SocketAddr,

    /// The access key, at least 32 bytes; no default, and nothing is served without one. Whoever has it may do
    /// everything. The environment is the best place for it: a command line is visible to every local user.
    pub access_key: Option<Secret>,

    /// The other access key while keys are being rotated: it verifies tokens, and signs none. No default.
    pub secondary_access_key: Option<Secret>,

    /// The base URLs (`http` or `https`) under which clients reach this gateway, each perhaps with a path prefix,
    /// which is then honoured in routing, in token audiences and in the printed connection string. Default none: a
    /// token is then good for the host that its client dialled. When set, a token is good for one of these alone, whatever
    /// was dialled, and tokens made by the gateway are for the first of them. Behind a proxy that rewrites the `Host` header
    /// the public URL must be set, or every token is refused.
    #[serde(deserialize_with = "addresses::public_urls")]
    pub public_urls: Vec<Url>,

    /// The origins whose pages may use the gateway from a browser, such as `https://app.example.com`; `*` stands for all,
    /// `https://*.example.com` for all hosts below that one, `null` for pages that have none, such as files. Other schemes
    /// are those of applications with a browser inside, such as `capacitor://localhost`.
    /// Default none: then a page of any origin may connect with an access token, one without a token only if it is of
    /// the gateway's own origin, and no page of another origin reads an answer of an HTTP operation. When set, it binds
    /// all pages, those of the gateway's own origin too: the others are answered 403. Clients that are no browsers don't
    /// name an origin and are not affected. Danger: with `*` and an anonymous hub, any page that somebody visits can
    /// connect to the hub from inside their network.
    pub allowed_origins: Vec<AllowedOrigin>,

    /// Where logs are kept: `disk` or `memory`. Default `disk`. Danger: with `memory` no session and no message
    /// survives a restart.
    pub store: Store,

    /// Where the disk store keeps its files; made if it is not there. Default `data`, in the directory where the
    /// gateway is started. One process uses it at a time. Of no effect with the memory store. Danger: it holds the
    /// messages and the secret that reconnection tokens are made with; after a backup of it has been restored that
    /// `oncewire log copy` has not made, `oncewire log new-epoch` is necessary.
    pub data_dir: PathBuf,

    /// What an acknowledgement waits for: `sync` (the disk), `os` (the operating system) or `memory` (nothing). Default
    /// `sync` with the disk store, `memory` with the memory store, where the other two have no effect. May stand under
    /// `[hubs."name"]`. Danger: with `os` sessions end and acknowledged messages are lost when the machine loses power,
    /// with `memory` also when the process dies. Cost of `sync`: an acknowledgement takes as long as the disk's sync.
    pub durability: Option<Durability>,

    /// How long a session without a socket waits for its client, in seconds. Default 60, 1 to 604,800; below 30,
    /// the time for which official clients try to resume, it warns. May stand under `[hubs."name"]`. Cost: the
    /// session and its outbox stay in memory, also for a client that went away for good.
    pub session_retention_seconds: u64,

    /// How many messages a session may hold that its client has not acknowledged. Default 30,000, 1 to 1,000,000.
    /// May stand under `[hubs."name"]`. Cost: 16 bytes of memory each, and the message itself once for all sessions.
    /// Danger: one more ends the session with close code 1008, and official clients acknowledge only once a second, that
    /// of Java every 5 s. Twice as many may be there after a restart, see `oncewire_protocol` R14.
    pub outbox_messages_max: usize,

    /// How many bytes of such messages a session may hold. Default 32 MiB, 1 to 1 GiB. May stand under
    /// `[hubs."name"]`. Danger: below the size of one message that message ends every session that it is sent to.
    pub outbox_bytes_max: usize,

    /// How many of a session's executed ack ids are remembered, so that a repeated request is not executed again.
    /// Default 10,000, from [`Config::pending_requests_max`] to 1,000,000; below 1,000, what Web PubSub keeps, it
    /// warns. May stand under `[hubs."name"]`. Cost: up to some 50 bytes of memory each. Danger: a client with more
    /// requests under way than this can have one executed twice.
    pub ack_window_ids: usize,

    /// How often a WebSocket ping is sent, in seconds. Default 20, 1 to 120. May stand under `[hubs."name"]`. Cost:
    /// one small write per socket each time. Danger: proxies cut idle connections, often after 60 seconds, and a
    /// longer interval notices a dead client later.
    pub websocket_ping_seconds: u64,

    /// The largest message from a client, in bytes, after reassembly. Default 1 MiB, 1 byte to 64 MiB. A larger one
    /// closes the socket with code 1009 and ends the session. Cost: a socket may hold this much while reading.
    pub websocket_message_bytes_max: usize,

    /// The first size of a socket's read buffer, in bytes. Default 512, 64 bytes to 1 MiB. It grows for larger
    /// messages. Cost: this much memory for each idle socket; a smaller one costs busy sockets more copying.
    pub websocket_read_buffer_bytes: usize,

    /// How many connections of a listener may be on their way from accept to a finished request head or upgrade. Default
    /// 4,096, 1 to 1,000,000. For a further one that goes which has waited longest for its client, without a word; where
    /// all wait for the gateway, it waits. Cost: a read buffer each, of up to 64 KiB. Danger: too few, and a storm of
    /// clients after a restart sends the slow ones of them away.
    pub handshakes_pending_max: usize,

    /// How many connections of a listener may be there for HTTP requests, those that are kept for another one included;
    /// sockets don't count. Default 2,048, 1 to 1,000,000. For a further one that goes which has been idle for longest; where
    /// all are being answered, it is answered 503 with `Retry-After`. Cost: a read buffer of up to 64 KiB each, and 128 KiB
    /// of the kernel's memory for those that don't take their answers.
    pub http_connections_max: usize,

    /// How long a connection is kept for another HTTP request, in seconds. Default 75, 1 to 3,600. Danger: below the time
    /// for which a proxy in front keeps its connections, it finds them closed now and then and answers 502.
    pub http_keep_alive_seconds: u64,

    /// How long a client may take none of what it is answered, in seconds; then its connection is closed. Default 30,
    /// 1 to 300. Sockets are not concerned.
    pub http_write_timeout_seconds: u64,

    /// How many connections there may be from one address at once, sockets included; of IPv6 from one network of 64 bits.
    /// No default: no bound. 1 to 10,000,000. A further one is closed at once. Danger: behind a proxy that is not among
    /// [`Config::trusted_proxies`] all clients have one address, and so have those behind one router.
    pub connections_per_address_max: Option<usize>,

    /// Addresses and networks, such as `10.0.0.0/8`, of proxies in front of this gateway: for their connections
    /// [`Config::connections_per_address_max`] does not count. Default none.
    pub trusted_proxies: Vec<AddressRange>,

    /// How long a client may take to send its request head, in seconds. Default 10, 1 to 300.
    pub header_read_timeout_seconds: u64,

    /// How long an upgrade may take from its request head to its 101, in seconds. Default 30, 1 to 300. Danger:
    /// official clients give up after 30 seconds.
    pub handshake_timeout_seconds: u64,

    /// How long any other HTTP request may take, in seconds. Default 30, 1 to 300; after that it is answered 503.
    pub request_timeout_seconds: u64,

    /// The largest HTTP request body, in bytes. Default 1 MiB, 0 to 64 MiB; a larger one is answered 413.
    pub http_body_bytes_max: usize,

    /// How many client sockets there may be at once. No default: the operating system's limit on descriptors is then
    /// the only one. 1 to 10,000,000. Further clients are answered 503, but for those that recover a session.
    pub connections_max: Option<usize>,

    /// How many sessions there may be at once, those without a socket included. No default. 1 to 100,000,000. Further ones
    /// are answered 503; a session that exists is always recovered. Cost: some 5 KB of memory for each idle session,
    /// more with groups and with ack ids that are remembered.
    pub sessions_max: Option<usize>,

    /// How many sessions each user may have in a hub, those without a socket included. No default. 1 to 1,000,000. Further
    /// ones are answered 503.
    pub sessions_per_user_max: Option<usize>,

    /// How many hubs there may be, those without sessions that are still kept included. No default: a session in a new hub
    /// brings it into being. 1 to 1,000,000. At the bound such a session is answered 503, and hubs that exist go on.
    /// Danger without it: whoever has an access key, or a client of an application that lets its users name hubs, can
    /// fill the disk with hubs, and memory: one that is open takes about 0.3 MiB and four descriptors, and 0.45 MiB and two threads
    /// while it is written to, beside what is in it, which [`Config::message_memory_bytes_max`] does not count.
    pub hubs_max: Option<usize>,

    /// How many bytes of memory all sessions together may fill: with messages, one that many sessions share counted once
    /// in each shard; with the places for them; with requests that wait; and with what they keep as long as they live, their
    /// groups, permissions and executed ack ids. Beside it events of event handlers that are under way may take an eighth of it
    /// (at least 4 MiB), their answers a quarter (at least 64 MiB), and `disconnected` events that nobody takes a quarter (at least 4 MiB).
    /// Default 512 MiB, 1 byte to 1 TiB. Danger: above this new sessions
    /// are answered 503, and the sessions that hold most are ended to free memory. What lives as long as its session
    /// leaves half of it to the rest; while a hub at rest holds most of it, the others may take as much again.
    pub message_memory_bytes_max: u64,

    /// How many requests of one socket may wait for the log; then no more is read from it. Default 1,024,
    /// 1 to 10,000. Cost: the requests are held in memory.
    pub pending_requests_max: usize,

    /// How many bytes of such requests may wait; then no more is read from the socket. Default 4 MiB, 1 byte to 1 GiB.
    pub pending_request_bytes_max: usize,

    /// How many bytes of replies may wait for one socket to take them; then no more is read from it. Default 64 KiB,
    /// 1 byte to 64 MiB.
    pub pending_reply_bytes_max: usize,

    /// How many groups a session may be in. Default 10,000, 1 to 1,000,000; joining another is refused, and so is one with
    /// which their names would take more than 1 MiB. The application may put a session into twice as many. Cost: memory for
    /// each membership, and all of them are part of the session's checkpoint.
    pub groups_per_session_max: usize,

    /// Which requests of the REST API are not executed again, and answered as the first time, when they come again under
    /// the same `x-ms-client-request-id`, as the server SDKs send them when the first answer was lost: `sends` (those that
    /// send), `strict` (the same, and another send under a used id is refused with 409), `all` or `off` (none, as by
    /// Azure). Default `sends`; `on` is read as `sends`. May stand under `[hubs."name"]`. Danger: with `all` an application
    /// that gives one id to several requests, to correlate them, loses those that say the same again: of an addition to a
    /// group, a removal and an addition the last. Requests with `Repeatability-Request-ID` are not concerned.
    pub idempotency: Idempotency,

    /// How long requests with an id are remembered, in seconds, and how old the `Repeatability-First-Sent` of a request may
    /// be. Default 300, 60 to 604,800. May stand under `[hubs."name"]`. Cost: up to some 150 bytes of memory in each shard
    /// for each request of that time, and for each with `Repeatability-Request-ID` of that time and five minutes more.
    pub idempotency_window_seconds: u64,

    /// How many requests are remembered by their `x-ms-client-request-id`, and how many by their `Repeatability-Request-ID`;
    /// then the oldest is forgotten. Default 100,000, 1 to 1,000,000. May stand under `[hubs."name"]`. Cost: 40 bytes of
    /// each checkpoint for each. Danger: an application that makes more requests than this before it sends one again can
    /// have that executed twice; one with `Repeatability-Request-ID` is answered 412 instead.
    pub idempotency_requests_max: usize,

    /// Into how many shards each hub's sessions are divided; each shard is served by one core at a time. Default 1,
    /// 1 to 64. Cost: every shard folds the whole log of its hub. On two cores more than one gains nothing.
    pub hub_shards: u16,

    /// Whether the demo is served: a page at `/`, and operations for it under `/demo/`. Default `false`; the command `dev`
    /// turns it on. Danger: everybody who reaches it gets access tokens for the hub `demo`, and can disturb that hub's
    /// sockets. It answers only under loopback and the hosts of [`Config::public_urls`].
    pub demo: bool,

    /// Whether `GET /metrics` tells, where clients come in, how many sessions and sockets each hub has, how many requests were
    /// repeated, which hubs are damaged, and how often what ended, was refused or failed, in the text format of OpenMetrics.
    /// Default `false`. With [`Config::admin_listen`] they are there, and nowhere else, whatever this says. Cost: a line for
    /// each hub, put together at most once a second. Danger: everybody who reaches the gateway can read it, names of hubs
    /// included; a proxy in front can keep that path for the monitoring system.
    pub metrics: bool,

    /// Whether the gateway counts as healthy although hubs could not be started because what is stored of them is damaged.
    /// Default `false`: then the health operation answers 503 as long as there are such hubs. In either case the other
    /// hubs are served, a damaged one is answered 503 and stays as it is on the disk, and its name stands in the log, in
    /// the body of the health operation and in the metrics. Danger: with `true` nobody may notice that sessions and
    /// messages are missing.
    pub start_with_damaged_hubs: bool,

    /// Whether everybody knows the access key, as that of the command `dev`. Then only who dials a loopback host or one of
    /// [`Config::public_urls`] is served, and of pages only those of such hosts and of [`Config::allowed_origins`]: else any
    /// page that somebody visits could read and publish. No key of the file.
    #[serde(skip)]
    pub is_key_public: bool,

    /// Settings of single hubs, by the hub's name in lower case: `[hubs."name"]` in the file.
    pub hubs: BTreeMap<String, HubOverrides>,
}

/// How clients talk to a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// In the clear.
    Http,
    /// Over TLS.
    Https,
}

impl fmt::Display for Scheme {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Http => "http",
            Self::Https => "https",
        })
    }
}

/// Where logs are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Store {
    /// In the process: nothing survives it.
    Memory,
    /// On the local disk.
    Disk,
}

/// What must have happened before a record counts as written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// It is on the disk: it survives a loss of power.
    Sync,
    /// The operating system has it: it survives the end of the process. After a loss of power the hub starts empty.
    Os,
    /// The process has it: it survives nothing, and what the disk has of the hub from before is removed.
    Memory,
}

/// Which repeated requests of the REST API are not executed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Idempotency {
    /// Those that send.
    #[serde(alias = "on")]
    Sends,
    /// All that change something.
    All,
    /// Those that send; and another one under the same id is refused.
    Strict,
    /// None.
    Off,
}

impl Default for Config {
    fn default() -> Self {
        const MIB: usize = 1024 * 1024;
        Self {
            listen: None,
            default_listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7080)),
            admin_listen: None,
            tls_cert: None,
            tls_key: None,
            tls_self_signed: false,
            tls_listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8443)),
            access_key: None,
            secondary_access_key: None,
            public_urls: Vec::new(),
            allowed_origins: Vec::new(),
            store: Store::Disk,
            data_dir: PathBuf::from("data"),
            durability: None,
            session_retention_seconds: 60,
            outbox_messages_max: 30_000,
            outbox_bytes_max: 32 * MIB,
            ack_window_ids: 10_000,
            websocket_ping_seconds: 20,
            websocket_message_bytes_max: MIB,
            websocket_read_buffer_bytes: 512,
            handshakes_pending_max: 4096,
            http_connections_max: 2048,
            http_keep_alive_seconds: 75,
            http_write_timeout_seconds: 30,
            connections_per_address_max: None,
            trusted_proxies: Vec::new(),
            header_read_timeout_seconds: 10,
            handshake_timeout_seconds: 30,
            request_timeout_seconds: 30,
            http_body_bytes_max: MIB,
            connections_max: None,
            sessions_max: None,
            sessions_per_user_max: None,
            hubs_max: None,
            message_memory_bytes_max: 512 * MIB as u64,
            pending_requests_max: 1024,
            pending_request_bytes_max: 4 * MIB,
            pending_reply_bytes_max: 64 * 1024,
            groups_per_session_max: 10_000,
            idempotency: Idempotency::Sends,
            idempotency_window_seconds: 300,
            idempotency_requests_max: 100_000,
            hub_shards: 1,
            demo: false,
            metrics: false,
            start_with_damaged_hubs: false,
            is_key_public: false,
            hubs: BTreeMap::new(),
        }
    }
}

impl Config {
    /// The settings of a hub, whatever the case of its name: its own where it has them, else the general ones.
    pub fn hub(&self, name: &str) -> HubSettings {
        let own = self.hubs.get(&name.to_ascii_lowercase());
        HubSettings::resolve(self, own)
    }

    /// Whether https is served.
    pub fn is_tls_on(&self) -> bool {
        self.tls_cert.is_some() || self.tls_self_signed
    }

    /// Where plain http is served, if at all.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.listen.or((!self.is_tls_on()).then_some(self.default_listen))
    }

    /// Where https is served, if at all.
    pub fn https_address(&self) -> Option<SocketAddr> {
        self.is_tls_on().then_some(self.tls_listen)
    }

    /// The listeners for http, https and the operator, each with its address, if it is there.
    pub fn listeners(&self) -> [(Listener, Option<SocketAddr>); 3] {
        [
            (Listener::HTTP, self.http_address()),
            (Listener::HTTPS, self.https_address()),
            (Listener::ADMIN, self.admin_listen),
        ]
    }

    /// The URL under which this gateway is told to clients: the first public URL; else, given an address that it listens on
    /// and what it serves there, that address, with a wildcard address loopback.
    pub fn endpoint(&self, scheme: Scheme, local: SocketAddr) -> String {
        match self.public_urls.first() {
            Some(url) => trimmed(url),
            None => format!("{scheme}://{}", SocketAddr::new(reachable(local.ip()), local.port())),
        }
    }

    /// The host under which clients know this gateway, without a port: that of the first public URL, or else of the address
    /// that it listens on; with a wildcard address loopback.
    pub fn public_host(&self) -> String {
        if let Some(host) = self.public_urls.first().and_then(Url::host_str) {
            return host.to_owned();
        }
        let address = self.http_address().or(self.https_address()).unwrap_or(self.tls_listen);
        match reachable(address.ip()) {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        }
    }

    /// What deserves an operator's attention without being wrong.
    pub fn warnings(&self) -> Vec<ConfigWarning> {
        load::warnings(self)
    }
}

/// The address at which the machine itself finds what listens on this one.
fn reachable(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(any) if any.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(any) if any.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        one => one,
    }
}

/// A base URL without its trailing slash, as connection strings have it.
fn trimmed(url: &Url) -> String {
    url.as_str().trim_end_matches('/').to_owned()
}

#[cfg(test)]
mod tests;
