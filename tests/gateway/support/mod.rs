//! What all scenarios share.

mod connector;
mod driver;
mod gateway;
mod held_store;
mod http;
pub mod protobuf;
mod served;
mod socket;
mod tls;
mod token;

pub use connector::{Connector, Refused};
pub use driver::Driver;
pub use gateway::Gateway;
pub use held_store::{Failure, HeldStore};
pub use http::{Answer, Ask};
pub use served::Served;
pub use socket::{Bare, Event, Identity, Socket};
pub use tls::{Pair, PairFiles, TlsClient, Wire};
pub use token::{Token, now_unix_seconds};

use std::future::Future;
use std::time::Duration;

use serde_json::{Value, json};

/// The access key of gateways in tests.
pub const ACCESS_KEY: &str = "an access key for tests, which is long enough";
/// The other one.
pub const SECONDARY_KEY: &str = "another access key for tests, long enough too";
/// The hub of most scenarios.
pub const HUB: &str = "chat";
/// The subprotocols.
pub const JSON: &str = "json.webpubsub.azure.v1";
/// With recovery.
pub const RELIABLE: &str = "json.reliable.webpubsub.azure.v1";
/// In protobuf.
pub const PROTOBUF: &str = "protobuf.webpubsub.azure.v1";
/// In protobuf, with recovery.
pub const PROTOBUF_RELIABLE: &str = "protobuf.reliable.webpubsub.azure.v1";

/// How long anything may take before the test fails; no scenario depends on it.
const SAFETY_NET: Duration = Duration::from_secs(60);

/// Long enough for something wrong to arrive on most machines. A right gateway passes however slow the machine is.
const QUIET: Duration = Duration::from_millis(300);

/// Waits for something that has to happen.
#[track_caller]
pub fn soon<T>(what: impl Future<Output = T>) -> impl Future<Output = T> {
    let caller = std::panic::Location::caller();
    async move {
        match tokio::time::timeout(SAFETY_NET, what).await {
            Ok(value) => value,
            Err(_) => panic!("nothing happened for a long time: {caller}"),
        }
    }
}

/// Lets some time pass in which something that must not happen could.
pub async fn a_while() {
    tokio::time::sleep(QUIET).await;
}

/// `joinGroup`.
pub fn join(group: &str, ack_id: u64) -> Value {
    json!({"type": "joinGroup", "group": group, "ackId": ack_id})
}

/// `leaveGroup`.
pub fn leave(group: &str, ack_id: u64) -> Value {
    json!({"type": "leaveGroup", "group": group, "ackId": ack_id})
}

/// `sendToGroup` with a text.
pub fn publish(group: &str, ack_id: u64, text: &str) -> Value {
    json!({"type": "sendToGroup", "group": group, "ackId": ack_id, "dataType": "text", "data": text})
}

/// The ack of a success.
pub fn success(ack_id: u64) -> Value {
    json!({"type": "ack", "ackId": ack_id, "success": true})
}

/// A text that `user` published to `group`, as a reliable session gets it.
pub fn message(sequence_id: u64, group: &str, user: &str, text: &str) -> Value {
    let mut message = unsequenced(group, user, text);
    message["sequenceId"] = sequence_id.into();
    message
}

/// The same as any other session gets it.
pub fn unsequenced(group: &str, user: &str, text: &str) -> Value {
    json!({"type": "message", "from": "group", "group": group, "fromUserId": user, "dataType": "text", "data": text})
}

/// `sequenceAck`.
pub fn sequence_ack(sequence_id: u64) -> Value {
    json!({"type": "sequenceAck", "sequenceId": sequence_id})
}
