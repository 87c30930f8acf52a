//! Group membership and existence.

use super::*;

async fn bulk(gateway: &Gateway, operation: &str, body: Value) -> u16 {
    let ask = call(gateway, "POST", operation).header("content-type", "application/json");
    ask.body(body.to_string()).send().await.status
}

#[tokio::test]
async fn connections_are_put_into_groups_and_taken_out() {
    for gateway in [Gateway::start().await, Gateway::sharded().await] {
        let mut client = gateway.session(RELIABLE, &Token::bare()).await;
        let id = id_of(&client);
        let member = format!("groups/a%2Fb/connections/{id}");
        expect(&gateway, "HEAD", "groups/a%2Fb", 404).await;
        for _ in 0..2 {
            expect(&gateway, "PUT", &member, 200).await;
            expect(&gateway, "HEAD", "groups/a%2Fb", 200).await;
        }
        send_text(&gateway, "groups/a%2Fb/:send", "1").await;
        for _ in 0..2 {
            expect(&gateway, "DELETE", &member, 204).await;
            expect(&gateway, "HEAD", "groups/a%2Fb", 404).await;
        }
        send_text(&gateway, "groups/a%2Fb/:send", "2").await;
        for group in ["g", "h"] {
            expect(&gateway, "PUT", &format!("groups/{group}/connections/{id}"), 200).await;
        }
        expect(&gateway, "DELETE", &format!("connections/{id}/groups"), 204).await;
        for group in ["g", "h"] {
            expect(&gateway, "HEAD", &format!("groups/{group}"), 404).await;
        }
        assert_eq!(texts(&mut client).await, ["1"]);
    }
}

#[tokio::test]
async fn all_connections_of_a_user_are_put_into_groups_and_taken_out() {
    for gateway in [Gateway::start().await, Gateway::sharded().await] {
        let mut clients = Vec::new();
        for _ in 0..4 {
            clients.push(gateway.session(RELIABLE, &Token::bare().named("ann").group("own")).await);
        }
        let mut other = gateway.session(RELIABLE, &Token::bare().named("bob")).await;
        expect(&gateway, "PUT", "users/ann/groups/g", 200).await;
        let mut late = gateway.session(RELIABLE, &Token::bare().named("ann")).await;
        send_text(&gateway, "groups/g/:send", "1").await;
        expect(&gateway, "DELETE", "users/ann/groups/g", 204).await;
        expect(&gateway, "HEAD", "groups/g", 404).await;
        expect(&gateway, "HEAD", "groups/own", 200).await;
        expect(&gateway, "DELETE", "users/ann/groups", 204).await;
        expect(&gateway, "HEAD", "groups/own", 404).await;
        for client in &mut clients {
            assert_eq!(texts(client).await, ["1"]);
        }
        assert_eq!((texts(&mut late).await.len(), texts(&mut other).await.len()), (0, 0));
    }
}

#[tokio::test]
async fn what_is_missing_is_told_where_success_is_200_and_only_there() {
    let gateway = Gateway::start().await;
    for path in
        ["groups/g/connections/none", "connections/none/groups", "users/none/groups/g", "users/none/groups"]
    {
        expect(&gateway, "DELETE", path, 204).await;
    }
    let answer = call(&gateway, "PUT", "groups/g/connections/none").send().await;
    assert_eq!((answer.status, answer.header("x-ms-error-code")), (404, "Error.Connection.NotExisted"));
    assert_eq!(answer.json()["code"], "Error.Connection.NotExisted");
    let answer = call(&gateway, "PUT", "users/none/groups/g").send().await;
    assert_eq!((answer.status, &answer.json()["target"]), (404, &json!("User")));
    for (path, code) in [
        ("users/none", "Warning.User.NotExisted"),
        ("groups/none", "Warning.Group.NotExisted"),
        ("connections/none", "Warning.Connection.NotExisted"),
    ] {
        let answer = call(&gateway, "HEAD", path).send().await;
        assert_eq!((answer.status, answer.header("x-ms-error-code")), (404, code), "{path}");
        assert!(answer.body.is_empty());
    }
}

#[tokio::test]
async fn a_detached_client_exists_until_it_is_over() {
    let gateway = Gateway::start().await;
    let client = gateway.session(RELIABLE, &Token::bare().named("ann").group("g")).await;
    let paths = [format!("connections/{}", id_of(&client)), "users/ann".into(), "groups/g".into()];
    client.cut();
    a_while().await;
    for path in &paths {
        expect(&gateway, "HEAD", path, 200).await;
    }
    expect(&gateway, "PUT", "users/ann/groups/h", 200).await;
    expect(&gateway, "DELETE", &paths[0], 204).await;
    for path in &paths {
        expect(&gateway, "HEAD", path, 404).await;
    }
}

#[tokio::test]
async fn bulk_changes_are_for_everybody_without_a_filter() {
    for gateway in [Gateway::start().await, Gateway::sharded().await] {
        let mut clients = Vec::new();
        for _ in 0..5 {
            clients.push(gateway.json("u").await);
        }
        assert_eq!(bulk(&gateway, ":addToGroups", json!({"groups": ["a", "b", "a"]})).await, 200);
        send_text(&gateway, "groups/b/:send", "1").await;
        assert_eq!(
            bulk(&gateway, ":removeFromGroups", json!({"groups": ["b", "none"], "filter": ""})).await,
            200
        );
        send_text(&gateway, "groups/b/:send", "2").await;
        send_text(&gateway, "groups/a/:send", "3").await;
        for client in &mut clients {
            assert_eq!(texts(client).await, ["1", "3"]);
        }
    }
}

#[tokio::test]
async fn a_bulk_change_that_is_wrong_in_one_part_changes_nothing() {
    let gateway = Gateway::start().await;
    let _client = gateway.json("u").await;
    for body in [
        json!({}),
        json!({"groups": []}),
        json!({"groups": ["a", ""]}),
        json!({"groups": ["a", "g".repeat(1025)]}),
        json!({"groups": ["a"], "filter": " "}),
        json!({"groups": ["a"], "filter": 1}),
    ] {
        assert_eq!(bulk(&gateway, ":addToGroups", body.clone()).await, 400, "{body}");
    }
    expect(&gateway, "HEAD", "groups/a", 404).await;
    for content_type in ["text/plain", "application/octet-stream"] {
        let ask = call(&gateway, "POST", ":addToGroups").header("content-type", content_type);
        assert_eq!(ask.body("{\"groups\":[\"a\"]}").send().await.status, 415);
    }
    expect(&gateway, "POST", ":addToGroups", 415).await;
}

#[tokio::test]
async fn more_groups_than_a_session_may_be_in_are_a_conflict() {
    for shards in [1, 4] {
        let gateway = Gateway::with(|config| {
            config.groups_per_session_max = 2;
            config.hub_shards = shards;
        })
        .await;
        let clients = [gateway.json("ann").await, gateway.json("bob").await];
        let id = id_of(&clients[0]);
        assert_eq!(bulk(&gateway, ":addToGroups", json!({"groups": ["a", "b", "c", "d", "e"]})).await, 409);
        assert_eq!(bulk(&gateway, ":addToGroups", json!({"groups": ["a", "b", "c", "d"]})).await, 200);
        for path in [format!("groups/e/connections/{id}"), "users/ann/groups/e".to_owned()] {
            let answer = call(&gateway, "PUT", &path).send().await;
            assert_eq!((answer.status, answer.header("x-ms-error-code")), (409, "Error.Connection.Conflict"));
        }
        expect(&gateway, "PUT", &format!("groups/b/connections/{id}"), 200).await;
    }
}
