//! Who may use the API.

use jsonwebtoken::Algorithm;

use super::*;

const TARGET: &str = "/api/hubs/Chat/:send?api-version=2024-12-01";

async fn status(gateway: &Gateway, authorization: &str) -> u16 {
    let ask = Ask::new(gateway.address(), "POST", TARGET).header("content-length", "0");
    let answer = ask.header("authorization", authorization).send().await;
    assert_eq!(answer.header("api-supported-versions").len(), 58);
    if answer.status == 401 {
        assert_eq!(answer.header("www-authenticate"), "Bearer");
    }
    answer.status
}

fn bearer(token: &Token, audience: &str) -> String {
    format!("Bearer {}", token.sign(audience))
}

#[tokio::test]
async fn both_keys_and_every_spelling_of_the_url_are_accepted() {
    let gateway = Gateway::start().await;
    let host = gateway.address().to_string();
    let url = format!("http://{host}{TARGET}");
    assert_eq!(status(&gateway, &bearer(&Token::bare(), &url)).await, 202);
    assert_eq!(status(&gateway, &bearer(&Token::bare().key(SECONDARY_KEY), &url)).await, 202);
    assert_eq!(status(&gateway, &bearer(&Token::bare(), &url).replace("Bearer", "bEARER")).await, 202);
    for audience in [
        format!("http://{host}/api/hubs/Chat/:send"),
        format!("https://{host}/api/hubs/chat/:send/"),
        format!("wss://{host}/API/hubs/CHAT/%3Asend?x"),
    ] {
        assert_eq!(status(&gateway, &bearer(&Token::bare(), &audience)).await, 202, "{audience}");
    }
    let one_of = Token::bare().claim("aud", json!(["https://webpubsub.azure.com", url]));
    assert_eq!(status(&gateway, &bearer(&one_of, "")).await, 202);
    for seconds in [-240, 3600] {
        let token = Token::bare().claim("exp", json!(now_unix_seconds() + seconds));
        assert_eq!(status(&gateway, &bearer(&token, &url)).await, 202, "{seconds}");
    }
}

#[tokio::test]
async fn anything_else_is_unauthorized() {
    let gateway = Gateway::start().await;
    let host = gateway.address().to_string();
    let url = format!("http://{host}{TARGET}");
    for (what, token) in [
        ("another key", Token::bare().key("a key that nobody has given to the gateway")),
        ("another algorithm", Token::bare().algorithm(Algorithm::HS512)),
        ("expired", Token::bare().claim("exp", json!(now_unix_seconds() - 360))),
        ("without an expiry", Token::bare().claim("exp", Value::Null)),
        ("too early", Token::bare().claim("nbf", json!(now_unix_seconds() + 360))),
        ("without an audience", Token::bare().claim("aud", json!([]))),
    ] {
        assert_eq!(status(&gateway, &bearer(&token, &url)).await, 401, "{what}");
    }
    for audience in [
        format!("http://{host}/api/hubs/other/:send"),
        format!("http://{host}/api/hubs/chat"),
        format!("http://{host}/api/hubs/chat/:sendX"),
        format!("http://{host}/client/hubs/chat"),
        "http://other.example/api/hubs/chat/:send".to_owned(),
        format!("ftp://{host}/api/hubs/chat/:send"),
        "https://webpubsub.azure.com".to_owned(),
    ] {
        assert_eq!(status(&gateway, &bearer(&Token::bare(), &audience)).await, 401, "{audience}");
    }
    // {"alg":"none"} . the claims of a good token . no signature
    let good = Token::bare().sign(&url);
    let unsigned = format!("Bearer eyJhbGciOiJub25lIn0.{}.", good.split('.').nth(1).unwrap());
    for authorization in [&*unsigned, "Bearer", "Bearer x", "Basic eDp5", &format!("Bearer {good}x")] {
        assert_eq!(status(&gateway, authorization).await, 401, "{authorization}");
    }
    let without = Ask::new(gateway.address(), "POST", TARGET).header("content-length", "0").send().await;
    assert_eq!(without.status, 401);
}

#[tokio::test]
async fn a_token_for_a_name_opens_no_other_spelling_of_it() {
    let gateway = Gateway::start().await;
    let host = gateway.address();
    for (method, audience, path, expected) in [
        ("POST", "groups/A/:send", "Groups/A/:SEND", 202),
        ("POST", "groups/A/:send", "groups/%41/:send", 202),
        ("POST", "groups/A/:send", "groups/a/:send", 401),
        ("PUT", "groups/A/connections/c", "groups/A/connections/C", 401),
        ("HEAD", "users/U", "users/u", 401),
        ("HEAD", "permissions/sendToGroup/connections/c", "permissions/SENDTOGROUP/connections/c", 404),
        ("HEAD", "permissions/sendToGroup/connections/c", "permissions/sendToGroup/connections/C", 401),
    ] {
        let token = Token::bare().sign(&format!("http://{host}/api/hubs/chat/{audience}"));
        let ask = Ask::new(host, method, &format!("/api/hubs/CHAT/{path}?targetName=g"));
        let ask = ask.header("content-length", "0").header("authorization", &format!("Bearer {token}"));
        assert_eq!(ask.send().await.status, expected, "{audience} {path}");
    }
}

#[tokio::test]
async fn a_token_of_the_api_opens_no_client_and_a_clients_token_is_none_of_the_api() {
    let gateway = Gateway::start().await;
    let host = gateway.address();
    let rest = Token::user("u").sign(&format!("http://{host}{TARGET}"));
    let refused = gateway.connector().query("access_token", &rest).offer(JSON).open().await;
    assert_eq!(refused.err().map(|refused| refused.0), Some(401));
    let client = bearer(&Token::user("u"), &format!("http://{host}/client/hubs/Chat"));
    assert_eq!(status(&gateway, &client).await, 401);
}

#[tokio::test]
async fn a_token_is_good_behind_a_proxy_for_the_public_url_alone() {
    let gateway =
        Gateway::with(|config| config.public_urls = vec!["https://gw.example/wps".parse().unwrap()]).await;
    for (path, audience, expected) in [
        ("/api", "https://gw.example/wps/api", 202),
        ("/wps/api", "https://gw.example/wps/api", 202),
        ("/wps/api", "http://gw.example/wps/api", 202),
        ("/api", "https://gw.example/api", 401),
        ("/wps/api", "https://other.example/wps/api", 401),
        ("/api", &format!("http://{}/api", gateway.address()), 401),
    ] {
        let rest = "/hubs/chat/:send?api-version=2024-12-01";
        let token = Token::bare().sign(&format!("{audience}{rest}"));
        let ask = Ask::new(gateway.address(), "POST", &format!("{path}{rest}")).header("content-length", "0");
        let answer = ask.header("authorization", &format!("Bearer {token}")).send().await;
        assert_eq!(answer.status, expected, "{path} {audience}");
    }
}
