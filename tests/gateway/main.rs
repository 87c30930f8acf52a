//! End-to-end tests of the running gateway. Scenarios read like a dialogue: send, expect, wait, cut, expect.
//!
//! They are written from the Web PubSub client specification, not from the code: messages are spelled out as JSON, and
//! tokens are made by hand. A test whose name begins with `s22_` or `s22_1_` is the point of that number in the
//! specification's checklist and its table of scenarios.
//!
//! | module | holds |
//! |---|---|
//! | [`support`] | a gateway in the process, sockets, a driver for the protocol's own client, a store that obeys |
//! | `handshake` | statuses and their order, tokens, subprotocols |
//! | `requests`, `acks`, `permissions`, `payloads` | what clients ask for |
//! | `raw`, `conversions` | clients without a subprotocol; from each kind of client to each |
//! | `delivery`, `ordering`, `recovery`, `takeover` | what they can rely on |
//! | `crashes`, `marks`, `soak` | the binary killed or stopped and started again over its data |
//! | `closing`, `limits`, `wire_limits`, `shutdown` | how it ends |
//! | `memory` | what messages take, beside what they may take |
//! | `appends` | failing and slow logs |
//! | `starting`, `clocks` | when a gateway is ready; wall clocks that jump |
//! | `demo` | the demo page and its operations, and who may use them |
//! | `faults` | what the demo's page does to sockets, and what their clients make of it |
//! | `dev` | the command that starts itself again when it is killed |
//! | `origins` | pages of other origins |
//! | `tls` | the same inside TLS, and TLS handshakes |
//! | `client` | the protocol's own client through a proxy that cuts |
//! | `floods` | too much of everything, with the memory of the process held to a bound |
//! | `strangers` | what connections cost before anybody has looked at who they are, and who goes when there are too many |
//! | `hubs` | what brings a hub into being and what does not, and how many there may be |
//! | `rest` | the data-plane REST API, with clients connected |
//! | `process` | the binary: logs, descriptors, signals |
//! | `telling` | what its log and its metrics say of ends, refusals, floods and the application's faults |

// A failed expectation is how a test ends here, in helpers too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

mod acks;
mod appends;
mod client;
#[cfg(target_os = "linux")]
mod clocks;
mod closing;
mod conversions;
mod crashes;
mod delivery;
mod demo;
#[cfg(target_os = "linux")]
mod dev;
mod faults;
#[cfg(target_os = "linux")]
mod floods;
mod full_disk;
mod handshake;
mod hubs;
mod limits;
mod marks;
mod memory;
mod ordering;
mod origins;
mod payloads;
mod permissions;
mod process;
mod raw;
mod recovery;
mod requests;
mod rest;
mod shutdown;
mod soak;
mod starting;
#[cfg(target_os = "linux")]
mod strangers;
mod takeover;
mod telling;
mod tls;
#[cfg(target_os = "linux")]
mod turned_away;
mod wire_limits;
