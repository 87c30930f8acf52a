//! The demo: a page on which reliability can be seen, and what that page asks of the gateway.
//!
//! Knows: the built page, under which hosts and origins it may be used, and the operations behind its buttons. Does not
//! know: sessions, stores, tokens' insides, and how a fault is made on a socket.
//!
//! | file | holds |
//! |---|---|
//! | `page.rs` | the built files of `web-demo`, which are part of the program |
//! | `site.rs` | by their `Host` and `Origin`: which requests come from the page itself |
//! | `operations.rs` | what the page asks for |
//! | `body.rs` | JSON from the page, checked |
//! | `refusal.rs` | why it is refused, and with which status |
//!
//! All of it is for development. Whoever reaches the page gets access tokens for [`HUB`] alone, so it is off unless it is
//! asked for, and pages of other sites can't use it.

mod body;
mod operations;
mod page;
mod refusal;
mod site;

use std::sync::Arc;

use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};
use axum::{Router, middleware};
use oncewire_protocol::log::BootId;

use crate::auth::AccessKeys;
use crate::config::Config;
use crate::edge::Faults;
use site::Site;

/// The hub that the page uses.
pub const HUB: &str = "demo";

/// The largest body that an operation takes, in bytes.
pub const BODY_BYTES_MAX: usize = 4096;

/// The longest name of a user, in bytes.
const USER_BYTES_MAX: usize = 128;

/// The longest stall, in milliseconds.
const STALL_MILLISECONDS_MAX: u64 = 60_000;

/// What the demo needs of the rest of the gateway.
pub struct Demo {
    /// The settings.
    pub config: Arc<Config>,
    /// What the page's access tokens are signed with.
    pub access_keys: AccessKeys,
    /// Names this start of the process.
    pub boot: BootId,
    /// Whether another process starts this one again when it is killed.
    pub is_supervised: bool,
    /// The sockets of [`HUB`].
    pub faults: Arc<Faults>,
}

/// The page at `/`, and its operations under `/demo/`.
pub fn router(demo: Demo) -> Router {
    let site = Site::new(&demo.config.public_urls);
    let operations = Router::new()
        .route("/demo/negotiate", post(operations::negotiate))
        .route("/demo/status", get(operations::status))
        .route("/demo/faults/cut", post(operations::cut))
        .route("/demo/faults/stall", post(operations::stall))
        .route("/demo/faults/lose-next-ack", post(operations::lose_next_ack))
        .route("/demo/restart", post(operations::restart))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(Arc::new(demo));
    // Of these routes only: whoever asks for a path that is not here is none of the page's business.
    page::router().merge(operations).route_layer(middleware::from_fn_with_state(Arc::new(site), site::check))
}
