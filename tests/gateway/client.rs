//! The protocol's own client, through a proxy that cuts.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use oncewire_protocol::client::{ClientSettings, Outcome, Output};
use oncewire_protocol::wire::{AckId, GroupName, Metadata, Payload, PayloadKind, Upstream};
use oncewire_proxy::{Action, Proxy, RandomFaults};

use crate::support::*;
use crate::tls::Secured;

fn group() -> GroupName {
    GroupName::new("g").unwrap()
}

fn text(ack_id: AckId, text: &str) -> Upstream {
    Upstream::SendToGroup {
        group: group(),
        payload: Payload { kind: PayloadKind::Text, bytes: text.to_owned().into() },
        metadata: Metadata::default(),
        ack_id: Some(ack_id),
        no_echo: false,
        ttl_seconds: 0,
    }
}

/// A client whose sockets go through the proxy, connected and a member of `g`.
async fn member(connector: Connector, proxy: &Proxy, user: &str, settings: ClientSettings) -> Driver {
    let connector = connector.token(&Token::user(user)).through(proxy.address());
    let mut driver = Driver::start(connector, settings);
    let ack_id = driver.fresh_ack_id();
    driver.request(Upstream::JoinGroup { group: group(), ack_id: Some(ack_id) }).unwrap();
    loop {
        match driver.next().await {
            Output::Outcome { outcome: Outcome::Done | Outcome::Duplicate, .. } => return driver,
            Output::Connected { .. } | Output::Recovered => {}
            other => panic!("{other:?}"),
        }
    }
}

async fn proxy(gateway: SocketAddr) -> Proxy {
    Proxy::start("127.0.0.1:0".parse().unwrap(), gateway).await.unwrap()
}

async fn exactly_once_in_the_clear(settings: ClientSettings, messages: u64, seed: u64) {
    let gateway = Gateway::start().await;
    exactly_once(gateway.connector(), gateway.address(), settings, messages, seed).await;
}

/// Publishes `messages` while both sides are being cut; each has to arrive once and in order.
async fn exactly_once(
    connector: Connector,
    gateway: SocketAddr,
    settings: ClientSettings,
    messages: u64,
    seed: u64,
) {
    let (to_publisher, to_subscriber) = (proxy(gateway).await, proxy(gateway).await);
    // What is tested is what survives, not how long the pauses are.
    let settings = ClientSettings { connect_retry_ms: 20, recovery_window_ms: 600_000, ..settings };
    let mut publisher = member(connector.clone(), &to_publisher, "p", settings.clone()).await;
    let mut subscriber = member(connector, &to_subscriber, "s", settings).await;
    let faults = |seed| RandomFaults {
        seed,
        bytes_min: 600,
        bytes_max: 12_000,
        connections_max: 60,
        actions: vec![Action::CutRst, Action::CutFin],
    };
    to_publisher.set_random(Some(faults(seed)));
    to_subscriber.set_random(Some(faults(seed + 1)));
    to_publisher.strike_all(Action::CutRst);
    to_subscriber.strike_all(Action::CutRst);

    let publishing = async {
        let first = publisher.fresh_ack_id();
        let ids = first..first + messages;
        let mut unsent = ids.clone().peekable();
        let mut outcomes = BTreeMap::new();
        while outcomes.len() < messages as usize {
            while publisher.client().pending_requests() < 20
                && let Some(ack_id) = unsent.next()
            {
                publisher.request(text(ack_id, &(ack_id - first).to_string())).unwrap();
            }
            match publisher.next().await {
                Output::Outcome { ack_id, outcome } => {
                    assert!(matches!(outcome, Outcome::Done | Outcome::Duplicate), "{ack_id}: {outcome:?}");
                    assert_eq!(outcomes.insert(ack_id, outcome), None);
                }
                Output::Recovered | Output::Deliver { .. } => {}
                other => panic!("the publisher: {other:?}"),
            }
        }
        assert!(ids.eq(outcomes.into_keys()));
    };
    let subscribing = async {
        let mut next = 0;
        while next < messages {
            match subscriber.next().await {
                Output::Deliver { message, .. } => {
                    assert_eq!(message.payload.bytes, next.to_string());
                    next += 1;
                }
                Output::Recovered => {}
                other => panic!("the subscriber: {other:?}"),
            }
        }
    };
    tokio::join!(publishing, subscribing);
    assert!(to_publisher.report().faults > 5, "{:?}", to_publisher.report().faults);
    assert!(to_subscriber.report().faults > 5, "{:?}", to_subscriber.report().faults);
}

#[tokio::test]
async fn s22_1_22_500_messages_under_cuts_are_all_delivered_once_to_a_client_with_javascript_habits() {
    exactly_once_in_the_clear(ClientSettings::like_javascript(), 500, 1).await;
}

#[tokio::test]
async fn s22_1_22_500_messages_under_cuts_are_all_delivered_once_to_a_client_with_python_habits() {
    exactly_once_in_the_clear(ClientSettings::like_python(), 500, 101).await;
}

#[tokio::test]
async fn s22_1_22_500_messages_under_cuts_are_all_delivered_once_inside_tls() {
    let secured = Secured::start().await;
    let connector = secured.gateway.tls_connector(&secured.client);
    let settings = ClientSettings::like_javascript();
    exactly_once(connector, secured.gateway.tls_address(), settings, 500, 201).await;
}

#[tokio::test]
async fn a_client_goes_on_in_a_new_session_and_its_groups_when_the_gateway_was_started_anew() {
    let gateway = Gateway::start().await;
    let proxy = proxy(gateway.address()).await;
    let settings = ClientSettings { connect_retry_ms: 50, ..ClientSettings::default() };
    let mut client = member(gateway.connector(), &proxy, "c", settings).await;
    gateway.shut_down().await;
    let gateway = Gateway::start().await;
    proxy.set_upstream(gateway.address());
    // The URL names the old gateway, as the application's token does; the new one has the same keys.
    client.dial(proxy.address());
    let lost = loop {
        match client.next().await {
            Output::SessionLost { connection_id } => break connection_id,
            Output::Recovered => {}
            other => panic!("{other:?}"),
        }
    };
    match client.next().await {
        Output::Connected { connection_id, .. } => assert_ne!(connection_id, lost),
        other => panic!("{other:?}"),
    }
    let ack_id = client.fresh_ack_id();
    client.request(text(ack_id, "again")).unwrap();
    match client.next().await {
        Output::Deliver { message, sequence_id: Some(1) } => assert_eq!(message.payload.bytes, "again"),
        other => panic!("{other:?}"),
    }
    assert_eq!(client.next().await, Output::Outcome { ack_id, outcome: Outcome::Done });
}
