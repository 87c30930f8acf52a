//! Grants, revocations and their checks.

use super::*;

fn path(permission: &str, id: &str, group: &str) -> String {
    format!("permissions/{permission}/connections/{id}?targetName={group}")
}

#[tokio::test]
async fn a_literal_rule_decides_before_roles() {
    let gateway = Gateway::start().await;
    let token = Token::bare().role("webpubsub.sendToGroups.team.*").role("webpubsub.joinLeaveGroup");
    let mut client = gateway.session(RELIABLE, &token).await;
    let id = id_of(&client);
    for (group, status) in [("team.a", 200), ("team.a.b", 404), ("other", 404)] {
        expect(&gateway, "HEAD", &path("sendToGroup", &id, group), status).await;
    }
    let denied = path("sendToGroup", &id, "team.a");
    for _ in 0..2 {
        expect(&gateway, "DELETE", &denied, 204).await;
        expect(&gateway, "HEAD", &denied, 404).await;
    }
    client.refused(publish("team.a", 1, "x"), "Forbidden").await;
    client.done(publish("team.b", 2, "x")).await;
    expect(&gateway, "PUT", &denied, 200).await;
    expect(&gateway, "HEAD", &denied, 200).await;
    client.done(publish("team.a", 3, "x")).await;
    let granted = path("SENDTOGROUP", &id, "a%2Fb");
    for _ in 0..2 {
        expect(&gateway, "PUT", &granted, 200).await;
        expect(&gateway, "HEAD", &granted, 200).await;
    }
    client.done(publish("a/b", 4, "x")).await;
    expect(&gateway, "HEAD", &path("sendToGroup", &id, "*"), 404).await;
    expect(&gateway, "DELETE", &path("joinLeaveGroup", &id, "g"), 204).await;
    client.refused(join("g", 5), "Forbidden").await;
    client.done(join("h", 6)).await;
}

#[tokio::test]
async fn revoking_does_not_take_out_of_the_group_and_rules_survive_a_recovery() {
    let gateway = Gateway::start().await;
    let mut client = gateway.session(RELIABLE, &Token::bare().role("webpubsub.joinLeaveGroup")).await;
    client.done(join("g", 1)).await;
    let identity = client.identity();
    let rule = path("joinLeaveGroup", &identity.connection_id, "g");
    expect(&gateway, "DELETE", &rule, 204).await;
    client.cut();
    let mut client = gateway.recover(&identity).await;
    send_text(&gateway, "groups/g/:send", "still").await;
    client.expect(json!({"sequenceId": 1, "type": "message", "from": "group", "group": "g", "dataType": "text", "data": "still"})).await;
    client.refused(leave("g", 2), "Forbidden").await;
    expect(&gateway, "HEAD", &rule, 404).await;
}

#[tokio::test]
async fn an_unknown_connection_is_404_but_for_a_revocation() {
    let gateway = Gateway::start().await;
    let rule = path("sendToGroup", "none", "g");
    for method in ["PUT", "HEAD"] {
        let answer = call(&gateway, method, &rule).send().await;
        assert_eq!((answer.status, answer.header("x-ms-error-code")), (404, "Info.Connection.NotExisted"));
    }
    expect(&gateway, "DELETE", &rule, 204).await;
}

#[tokio::test]
async fn permissions_and_their_targets_are_checked() {
    let gateway = Gateway::start().await;
    let id = id_of(&gateway.json("u").await);
    for method in ["PUT", "DELETE", "HEAD"] {
        for bad in [
            format!("permissions/sendToGroup/connections/{id}"),
            path("sendToGroup", &id, ""),
            path("sendToGroup", &id, "%20"),
            path("sendToGroup", &id, &"g".repeat(1025)),
            path("1", &id, "g"),
            path("everything", &id, "g"),
        ] {
            expect(&gateway, method, &bad, 400).await;
        }
    }
}

#[tokio::test]
async fn one_literal_rule_too_many_is_a_conflict() {
    let gateway = Gateway::start().await;
    let client = gateway.json("u").await;
    let id = id_of(&client);
    let all = Token::bare().role("webpubsub.sendToGroup.own");
    let mut limited = gateway.session(JSON, &all).await;
    let limited_id = id_of(&limited);
    for n in 0..999 {
        expect(&gateway, "PUT", &path("sendToGroup", &limited_id, &format!("g{n}")), 200).await;
    }
    let answer = call(&gateway, "PUT", &path("sendToGroup", &limited_id, "more")).send().await;
    assert_eq!((answer.status, answer.header("x-ms-error-code")), (409, "Error.Connection.Conflict"));
    expect(&gateway, "HEAD", &path("sendToGroup", &limited_id, "more"), 404).await;
    expect(&gateway, "PUT", &path("sendToGroup", &limited_id, "g0"), 200).await;
    expect(&gateway, "PUT", &path("joinLeaveGroup", &limited_id, "more"), 200).await;
    limited.done(publish("g998", 1, "x")).await;
    expect(&gateway, "HEAD", &path("sendToGroup", &id, "own"), 200).await;
}
