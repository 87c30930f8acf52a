//! A TCP proxy for tests, which stands between real clients and the gateway and breaks the connections that pass
//! through it: it cuts, stalls, half-opens and refuses.
//!
//! Faults are placed by *bytes*, never by time, so that a sweep over every offset of an exchange is the same sweep each
//! time: "connection 2, server to client, after 231 bytes: cut". Connections are numbered from 1 in the order in which
//! they were accepted; refused ones have no number.
//!
//! The module knows bytes and sockets. It does not know HTTP, WebSocket or the protocols inside them.
//!
//! * [`Proxy`] is one listening socket with its own numbering and faults; tests in Rust use it directly.
//! * [`control`] is the line protocol of the `oncewire-proxy` binary, through which tests in other languages open any
//!   number of proxies in one process.

pub mod control;

mod connection;
mod fault;
mod proxy;
mod random;
mod report;

pub use fault::{Action, Direction, Fault, Target};
pub use proxy::{CONNECTIONS_MAX, PLANS_MAX, Proxy, ProxyError, Reached};
pub use random::RandomFaults;
pub use report::{CONNECTIONS_REPORTED_MAX, ConnectionReport, Ending, Report, State};
