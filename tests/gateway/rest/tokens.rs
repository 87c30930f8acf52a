//! Client tokens that the gateway makes.

use super::*;

async fn generate(gateway: &Gateway, query: &str) -> Answer {
    call(gateway, "POST", &format!(":generateToken?{query}")).send().await
}

#[tokio::test]
async fn a_token_opens_a_session_with_its_user_roles_and_groups() {
    let gateway = Gateway::start().await;
    let query = "userId=a%20nn&role=webpubsub.sendToGroup.g&role=webpubsub.joinLeaveGroup&group=g&group=h&minutesToExpire=5&clientType=default";
    let answer = generate(&gateway, query).await;
    assert_eq!(answer.status, 200);
    let token = answer.json()["token"].as_str().unwrap().to_owned();
    let connector = gateway.connector().query("access_token", &token).offer(RELIABLE);
    let mut client = connector.open().await.unwrap();
    client.read_connected().await;
    assert_eq!(client.user_id(), Some("a nn"));
    client.send(publish("g", 1, "hi")).await;
    client.expect(message(1, "g", "a nn", "hi")).await;
    client.expect(success(1)).await;
    client.refused(publish("h", 2, "hi"), "Forbidden").await;
    expect(&gateway, "HEAD", "groups/h", 200).await;
}

#[tokio::test]
async fn an_empty_user_is_none_and_mqtt_is_not_implemented() {
    let gateway = Gateway::start().await;
    for query in ["", "userId=", "clientType=DEFAULT", "minutesToExpire=2147483647"] {
        let answer = generate(&gateway, query).await;
        assert_eq!(answer.status, 200, "{query}");
        let token = answer.json()["token"].as_str().unwrap().to_owned();
        let mut client = gateway.connector().query("access_token", &token).offer(JSON).open().await.unwrap();
        client.read_connected().await;
        assert_eq!(client.user_id(), None);
    }
    for (query, status) in [
        ("clientType=mqtt", 501),
        ("clientType=MQTT", 501),
        ("clientType=SocketIO", 400),
        ("clientType=", 400),
        ("group=%20", 400),
        // The gateway would refuse these tokens.
        ("userId=a%0Db", 400),
        ("userId=%00", 400),
        ("userId=a%C2%85", 400),
        ("minutesToExpire=0", 400),
        ("minutesToExpire=-1", 400),
        ("minutesToExpire=2147483648", 400),
        ("minutesToExpire=x", 400),
        ("minutesToExpire=1.5", 400),
    ] {
        assert_eq!(generate(&gateway, query).await.status, status, "{query}");
    }
}

#[tokio::test]
async fn a_token_was_made_for_more_groups_than_a_session_can_be_in() {
    let gateway = Gateway::with(|config| config.groups_per_session_max = 2).await;
    for (query, status) in
        [("group=a&group=b", 200), ("group=a&group=b&group=a", 200), ("group=a&group=b&group=c", 400)]
    {
        assert_eq!(generate(&gateway, query).await.status, status, "{query}");
    }
}
