//! The Oncewire gateway: a self-hosted publish/subscribe gateway that speaks the Azure Web PubSub protocols, with
//! exactly-once sessions.
//!
//! A message that was acknowledged to its publisher reaches every subscribing session exactly once and in order,
//! also across dropped sockets. **Each hub is one ordered log, and a session is a fold over that log**; what that
//! means, and the rules that follow from it, stand at the top of `oncewire_protocol`, which holds everything that is
//! true without I/O. This crate adds the sockets, the stores and the clock.
//!
//! | room | knows | does not know |
//! |---|---|---|
//! | [`edge`] | upgrade, sockets, pings, writing what a session has pending | store, groups, other sockets |
//! | [`engine`] | tasks and channels around shards; who owns what | WebSocket frames, HTTP types, file formats |
//! | [`store`] | append, tail, trim, checkpoint, durability | sessions, groups, JSON, sockets |
//! | [`demo`] | the demo page, who may use it, what its buttons do | sessions, stores, how a fault is made on a socket |
//! | [`rest`] | the data-plane REST API: its HTTP shapes and error table | shards' insides, sockets |
//! | [`events`] | event handlers (CloudEvents webhooks): routes, requests and answers, attempts | shards, sockets, records |
//! | [`admin`] | the health operation, whether the gateway takes work, which hubs are damaged, metrics, the socket over which a copy is asked for | sessions, tokens |
//! | [`auth`] | keys and tokens | what a permission is used for |
//! | [`config`] | every key with its unit, default, cost and danger | what a setting does to the part that takes it |
//! | [`telemetry`] | the log's filter, formats and writer, episodes, the names of counters | what is logged |
//! | [`reload`] | when files have changed | what is in them |
//! | [`query`] | how the query of a request is written | what a parameter means |
//!
//! # What happens to a `sendToGroup`
//!
//! ```text
//! socket   edge::socket::reader     bytes to frames; driver::socket::reader makes requests of them
//!   |      engine::AttachedSocket           hands them to the shard's inbox, counted until they are settled
//! shard    driver::ShardDriver      one turn: inputs in, outputs out, one append for all of them
//!   |      hub, session             permission, ack id, bounds: refused here (R4), or a record is proposed
//! log      store                    durable before anybody hears of it (R3), then read back in order by every shard
//!   |
//! shard    hub::state               judges the record: it takes effect, or is passed over (R8)
//!   |      hub::apply               one message for all members; each outbox gives it the session's next sequence id
//!   |      hub::settling            told the verdict, answers the publisher: the ack
//! socket   edge::socket::writer     driver::socket::writer writes what the outbox holds, until the client acknowledges it
//! ```
//!
//! Imports run one way only: `bin -> demo -> {edge, rest, events, admin} -> engine -> store ->
//! oncewire_protocol`. `auth`, `config`, `query`, `telemetry` and `reload` are leaves: they import no other room, but that
//! `auth` tells of tokens by `telemetry`. [`gateway`] puts the rooms together.

pub mod admin;
pub mod auth;
pub mod config;
pub mod demo;
pub mod edge;
pub mod engine;
pub mod events;
pub mod gateway;
pub mod query;
pub mod reload;
pub mod rest;
pub mod store;
pub mod telemetry;
