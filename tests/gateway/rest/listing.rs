//! The connections in a group, in pages.

use super::*;

/// Follows the links and returns the ids of each page.
async fn pages(gateway: &Gateway, path: &str) -> Vec<Vec<String>> {
    let base = format!("http://{}", gateway.address());
    let mut answer = call(gateway, "GET", path).send().await;
    let mut pages = Vec::new();
    loop {
        assert_eq!(answer.status, 200);
        let page = answer.json();
        let rows = page["value"].as_array().unwrap().iter();
        pages.push(rows.map(|row| row["connectionId"].as_str().unwrap().to_owned()).collect());
        let Some(link) = page["nextLink"].as_str() else { return pages };
        let target = link.strip_prefix(&base).unwrap_or_else(|| panic!("{link}"));
        answer = signed(gateway, "GET", target).send().await;
    }
}

async fn fill(gateway: &Gateway, count: usize) -> (Vec<Socket>, Vec<String>) {
    let mut sockets = Vec::new();
    for _ in 0..count {
        sockets.push(gateway.session(JSON, &Token::bare().group("g h")).await);
    }
    let mut ids: Vec<String> = sockets.iter().map(id_of).collect();
    ids.sort();
    (sockets, ids)
}

#[tokio::test]
async fn pages_are_ordered_whole_and_as_large_as_asked_for() {
    for gateway in [Gateway::start().await, Gateway::sharded().await] {
        let (_sockets, ids) = fill(&gateway, 7).await;
        let all = |path: &str| format!("groups/g%20h/connections{path}");
        for (path, sizes, total) in [
            ("", &[7][..], 7),
            ("?maxpagesize=3", &[3, 3, 1], 7),
            ("?maxpagesize=7", &[7], 7),
            ("?top=5", &[5], 5),
            ("?maxpagesize=2&top=5", &[2, 2, 1], 5),
            ("?maxpagesize=2&top=4", &[2, 2], 4),
            ("?maxpagesize=4&top=100", &[4, 3], 7),
            ("?top=2147483647", &[7], 7),
        ] {
            let pages = pages(&gateway, &all(path)).await;
            assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), sizes, "{path}");
            assert_eq!(pages.concat(), ids[..total], "{path}");
        }
    }
}

#[tokio::test]
async fn users_are_told_and_an_unknown_group_is_empty() {
    let gateway = Gateway::start().await;
    let listed = call(&gateway, "GET", "groups/none/connections").send().await;
    assert_eq!((listed.status, listed.json()), (200, json!({"value": []})));
    let ann = gateway.session(JSON, &Token::bare().named("ann").group("g")).await;
    let listed = call(&gateway, "GET", "groups/g/connections").send().await.json();
    assert_eq!(listed, json!({"value": [{"connectionId": id_of(&ann), "userId": "ann"}]}));
}

#[tokio::test]
async fn who_goes_between_pages_shifts_nothing() {
    let gateway = Gateway::start().await;
    let (_sockets, ids) = fill(&gateway, 6).await;
    let first = call(&gateway, "GET", "groups/g%20h/connections?maxpagesize=2").send().await.json();
    let link = first["nextLink"].as_str().unwrap().to_owned();
    for id in [&ids[0], &ids[1], &ids[3]] {
        expect(&gateway, "DELETE", &format!("groups/g%20h/connections/{id}"), 204).await;
    }
    let target = link.strip_prefix(&format!("http://{}", gateway.address())).unwrap();
    let second = signed(&gateway, "GET", target).send().await.json();
    let rows: Vec<_> = second["value"].as_array().unwrap().iter().map(|row| &row["connectionId"]).collect();
    assert_eq!(rows, [&ids[2], &ids[4]]);
}

#[tokio::test]
async fn two_hundred_are_a_page_and_one_more_another() {
    let gateway = Gateway::start().await;
    let (mut sockets, _) = fill(&gateway, 200).await;
    let sizes =
        async || pages(&gateway, "groups/g%20h/connections").await.iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(sizes().await, [200]);
    sockets.push(gateway.session(JSON, &Token::bare().group("g h")).await);
    assert_eq!(sizes().await, [200, 1]);
}

#[tokio::test]
async fn pages_of_long_names_took_megabytes_each() {
    let gateway = Gateway::start().await;
    let mut sockets = Vec::new();
    for n in 0..12 {
        let user = format!("{n}{}", "u".repeat(30_000));
        sockets.push(gateway.session(JSON, &Token::user(&user).group("g h")).await);
    }
    let sizes: Vec<_> = pages(&gateway, "groups/g%20h/connections").await.iter().map(Vec::len).collect();
    assert_eq!(sizes, [8, 4], "256 KiB of names are a page");
    let sizes: Vec<_> =
        pages(&gateway, "groups/g%20h/connections?top=9").await.iter().map(Vec::len).collect();
    assert_eq!(sizes, [8, 1]);
}

#[tokio::test]
async fn what_is_out_of_range_or_forged_is_refused_by_its_name() {
    let gateway = Gateway::start().await;
    let (_sockets, _) = fill(&gateway, 2).await;
    let first = call(&gateway, "GET", "groups/g%20h/connections?maxpagesize=1").send().await.json();
    let link = first["nextLink"].as_str().unwrap();
    let token = link.split("continuationToken=").nth(1).unwrap();
    for (group, query, target) in [
        ("g%20h", "maxpagesize=0", "maxpagesize"),
        ("g%20h", "maxpagesize=201", "maxpagesize"),
        ("g%20h", "maxpagesize=", "maxpagesize"),
        ("g%20h", "maxpagesize=1&maxpagesize=1", "maxpagesize"),
        ("g%20h", "top=0", "top"),
        ("g%20h", "top=2147483648", "top"),
        ("g%20h", "continuationToken=", "continuationToken"),
        ("g%20h", "continuationToken=AbC_d", "continuationToken"),
        ("other", &format!("continuationToken={token}"), "continuationToken"),
        ("g%20h", &format!("continuationToken={}", "A".repeat(2049)), "continuationToken"),
    ] {
        let answer = call(&gateway, "GET", &format!("groups/{group}/connections?{query}")).send().await;
        assert_eq!((answer.status, &answer.json()["target"]), (400, &json!(target)), "{query}");
    }
}

#[tokio::test]
async fn behind_a_proxy_the_link_names_the_public_host() {
    let gateway =
        Gateway::with(|config| config.public_urls = vec!["https://gw.example/wps".parse().unwrap()]).await;
    let mut sockets = Vec::new();
    for _ in 0..2 {
        let token = Token::bare().group("g").claim("aud", json!("https://gw.example/wps/client/hubs/chat"));
        sockets.push(gateway.connector().token(&token).offer(JSON).open().await.unwrap());
    }
    let target = "/api/hubs/chat/groups/g/connections?maxpagesize=1";
    let ask = |target: &str| {
        let token = Token::bare().sign(&format!("https://gw.example/wps{target}"));
        Ask::new(gateway.address(), "GET", target).header("authorization", &format!("Bearer {token}"))
    };
    let page = ask(target).send().await.json();
    let link = page["nextLink"].as_str().unwrap().to_owned();
    let start = "https://gw.example/wps/api/hubs/chat/groups/g/connections?maxpagesize=1&continuationToken=";
    assert!(link.starts_with(start), "without a version, as the request: {link}");
    let next = ask(link.strip_prefix("https://gw.example/wps").unwrap()).send().await;
    assert_eq!(next.json()["value"].as_array().unwrap().len(), 1);
}
