//! Roles: who may join and publish.

use crate::support::*;

const JOIN: &str = "webpubsub.joinLeaveGroup";
const SEND: &str = "webpubsub.sendToGroup";

/// Whether a session with this role may publish to a group.
async fn may_send(gateway: &Gateway, role: &str, group: &str) -> bool {
    let mut socket = gateway.session(JSON, &Token::bare().role(role)).await;
    let ack = socket.ask(publish(group, 1, "x")).await;
    assert!(ack["success"] == true || ack["error"]["name"] == "Forbidden", "{ack}");
    ack["success"] == true
}

#[tokio::test]
async fn s22_17_singular_roles_are_literal_and_plural_roles_are_patterns() {
    let gateway = Gateway::start().await;
    for (role, group, expected) in [
        ("webpubsub.sendToGroup", "anything", true),
        ("webpubsub.sendToGroup.a", "a", true),
        ("webpubsub.sendToGroup.a", "A", false),
        ("webpubsub.sendToGroup.a.b.c", "a.b.c", true),
        ("webpubsub.sendToGroup.a", "a.b", false),
        ("webpubsub.sendToGroup.?", "x", false),
        ("webpubsub.sendToGroup.?", "?", true),
        ("webpubsub.sendToGroups.a?c", "abc", true),
        ("webpubsub.sendToGroups.a?c", "a.c", false),
        ("webpubsub.sendToGroups.a?c", "ac", false),
        ("webpubsub.sendToGroups.*", "", false),
        ("webpubsub.sendToGroups.**", "a.b.c", true),
        ("webpubsub.sendToGroups.a.**", "a.b.c", true),
        ("webpubsub.sendToGroups.a.**", "b.a.c", false),
        (r"webpubsub.sendToGroups.a\*", "a*", true),
        (r"webpubsub.sendToGroups.a\*", "ab", false),
        (r"webpubsub.sendToGroups.a\b", "ab", false),
        ("webpubsub.SendToGroup", "a", false),
        ("webpubsub.joinLeaveGroup", "a", false),
    ] {
        if !group.is_empty() {
            assert_eq!(may_send(&gateway, role, group).await, expected, "{role}, {group}");
        }
    }
}

#[tokio::test]
async fn s22_1_20_an_asterisk_in_a_singular_role_is_the_group_of_that_name() {
    let gateway = Gateway::start().await;
    assert!(!may_send(&gateway, "webpubsub.sendToGroup.*", "x").await);
    assert!(may_send(&gateway, "webpubsub.sendToGroup.*", "*").await);
}

#[tokio::test]
async fn s22_1_21_one_asterisk_does_not_cross_a_dot() {
    let gateway = Gateway::start().await;
    assert!(may_send(&gateway, "webpubsub.sendToGroups.a.*", "a.b").await);
    assert!(!may_send(&gateway, "webpubsub.sendToGroups.a.*", "a.b.c").await);
}

#[tokio::test]
async fn joining_and_leaving_need_the_same_role_and_publishing_another() {
    let gateway = Gateway::start().await;
    let mut joiner = gateway.session(RELIABLE, &Token::bare().role(&format!("{JOIN}.g"))).await;
    joiner.done(join("g", 1)).await;
    joiner.done(leave("g", 2)).await;
    joiner.refused(join("h", 3), "Forbidden").await;
    joiner.refused(leave("h", 4), "Forbidden").await;
    joiner.refused(publish("g", 5, "x"), "Forbidden").await;
    let mut sender = gateway.session(RELIABLE, &Token::bare().role(&format!("{SEND}.g"))).await;
    sender.done(publish("g", 1, "x")).await;
    sender.refused(join("g", 2), "Forbidden").await;
    sender.refused(leave("g", 3), "Forbidden").await;
}

#[tokio::test]
async fn a_refused_leave_leaves_the_membership_as_it_was() {
    let gateway = Gateway::start().await;
    let mut reader = gateway.session(RELIABLE, &Token::bare().group("g")).await;
    reader.refused(leave("g", 1), "Forbidden").await;
    let mut writer = gateway.reliable("w").await;
    writer.done(publish("g", 1, "hi")).await;
    reader.expect(message(1, "g", "w", "hi")).await;
}

#[tokio::test]
async fn roles_survive_a_recovery() {
    let gateway = Gateway::start().await;
    let token = Token::bare().role(&format!("{JOIN}.g")).role("webpubsub.sendToGroups.a.*");
    let socket = gateway.session(RELIABLE, &token).await;
    let identity = socket.identity();
    socket.cut();
    let mut socket = gateway.recover(&identity).await;
    socket.done(join("g", 1)).await;
    socket.done(publish("a.b", 2, "x")).await;
    socket.refused(join("h", 3), "Forbidden").await;
    socket.refused(publish("b", 4, "x"), "Forbidden").await;
}
