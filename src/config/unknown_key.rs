//! What is said of a key that does not exist: which one may be meant.

/// Keys of Azure's portal, its resource templates and its emulator, and ours.
const FROM_AZURE: &[(&str, &str)] = &[
    ("handlers", "event_handlers"),
    ("anonymousConnectPolicy", "anonymous"),
    ("primaryKey", "access_key"),
    ("secondaryKey", "secondary_access_key"),
    ("webSocketKeepAliveIntervalInSeconds", "websocket_ping_seconds"),
    ("hubSettings", "hubs"),
];

/// Keys of Azure that need none here, and why.
const NOT_NEEDED: &[(&str, &str)] = &[
    ("auth", "put what the handler is to be sent into bearer_token"),
    ("managedIdentity", "put what the handler is to be sent into bearer_token"),
    ("disableLocalAuth", "access tokens are always signed with an access key"),
    ("disableAadAuth", "access tokens are always signed with an access key"),
    ("networkACLs", "listen decides who can reach the gateway"),
    ("publicNetworkAccess", "listen decides who can reach the gateway"),
    ("liveTraceConfiguration", "ONCEWIRE_LOG sets what is logged"),
    ("resourceLogConfiguration", "ONCEWIRE_LOG sets what is logged"),
    ("sku", "no key is needed for it"),
    ("capacity", "no key is needed for it"),
    ("unitCount", "no key is needed for it"),
    ("location", "no key is needed for it"),
    ("kind", "no key is needed for it"),
    ("properties", "its keys stand without it"),
    ("eventListeners", "this version has no event listeners"),
];

/// Keys that only hubs have, and where they stand.
const OF_HUBS: &[(&str, &str)] = &[
    ("event_handlers", "they belong to a hub: [[hubs.\"name\".event_handlers]]"),
    ("anonymous", "it belongs to a hub: put it under [hubs.\"name\"]"),
    ("on_event_failure", "it belongs to a hub: put it under [hubs.\"name\"]"),
];

/// What the names of the gateway's environment variables begin with.
const VARIABLE_PREFIX: &str = "ONCEWIRE_";

/// How many letters may differ, as a part of the longer word.
const LIKENESS_MIN: f64 = 0.6;

/// What may help with the key `unknown`, if anything does. `message` is the reader's, which lists the keys that there are
/// in that place.
pub(super) fn advice(unknown: &str, message: &str) -> Option<String> {
    // What is unknown itself comes first.
    let known: Vec<&str> = message.split('`').skip(1).step_by(2).skip(1).collect();
    let is_known = |key: &str| known.contains(&key);
    let ours = snake_case(unknown);
    if is_known(&ours) {
        return Some(format!("it is called {ours} here"));
    }
    let is_of_hubs = |(key, _): &&(&str, &str)| *key == ours && is_known("hubs");
    if let Some((_, place)) = OF_HUBS.iter().find(is_of_hubs) {
        return Some((*place).to_owned());
    }
    let is = |(azure, _): &&(&str, &str)| azure.eq_ignore_ascii_case(unknown) || snake_case(azure) == ours;
    if let Some((_, key)) = FROM_AZURE.iter().find(is) {
        return Some(format!("it is called {key} here"));
    }
    if let Some((_, why)) = NOT_NEEDED.iter().find(is) {
        return Some((*why).to_owned());
    }
    let is_longer = |key: &&&str| key.strip_prefix(&*ours).is_some_and(|rest| rest.starts_with('_'));
    let nearest = nearest(&ours, &known).or_else(|| known.iter().find(is_longer).copied());
    nearest.map(|nearest| format!("did you mean {nearest}?"))
}

/// Of an environment variable that looks like one of the gateway's and is none: which one may be meant.
pub fn variable_advice<'a>(unknown: &str, known: &[&'a str]) -> Option<&'a str> {
    if known.contains(&unknown) || !unknown.starts_with(VARIABLE_PREFIX) {
        return None;
    }
    let without_prefix: Vec<_> = known.iter().filter_map(|name| name.strip_prefix(VARIABLE_PREFIX)).collect();
    let meant = nearest(&unknown[VARIABLE_PREFIX.len()..], &without_prefix)?;
    known.iter().find(|name| name.strip_prefix(VARIABLE_PREFIX) == Some(meant)).copied()
}

fn nearest<'a>(unknown: &str, known: &[&'a str]) -> Option<&'a str> {
    let likeness = |key: &str| strsim::normalized_damerau_levenshtein(key, unknown);
    let nearest = known.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(nearest) >= LIKENESS_MIN).then_some(*nearest)
}

/// `userEventPattern` and `user-event-pattern` as `user_event_pattern`.
fn snake_case(key: &str) -> String {
    let mut snake = String::with_capacity(key.len() + 4);
    let mut was_lower = false;
    for letter in key.chars() {
        if letter.is_ascii_uppercase() && was_lower {
            snake.push('_');
        }
        was_lower = letter.is_ascii_lowercase() || letter.is_ascii_digit();
        snake.push(if letter == '-' { '_' } else { letter.to_ascii_lowercase() });
    }
    snake
}

#[cfg(test)]
mod tests {
    use super::variable_advice;
    use crate::config::{Config, Overrides};

    fn refusal(text: &str) -> String {
        Config::from_toml(text, Overrides::default()).unwrap_err().to_string()
    }

    #[test]
    fn an_unknown_key_is_told_the_nearest_one() {
        for (text, advice) in [
            ("outbox_mesages_max = 5", "did you mean outbox_messages_max?"),
            ("acess_key = \"x\"", "did you mean access_key?"),
            ("[hub.\"chat\"]", "did you mean hubs?"),
            ("[[event_handlers]]", "they belong to a hub: [[hubs.\"name\".event_handlers]]"),
            ("[[eventHandlers]]", "they belong to a hub: [[hubs.\"name\".event_handlers]]"),
            ("anonymous = true", "it belongs to a hub: put it under [hubs.\"name\"]"),
            ("[hubs.\"chat\"]\nanonymus = true", "did you mean anonymous?"),
            (
                "[[hubs.\"chat\".event_handlers]]\nurl_template = \"http://127.0.0.1:1/\"\nsystem_event = []",
                "did you mean system_events?",
            ),
            ("[[hubs.\"chat\".event_handlers]]\nurl = \"http://127.0.0.1:1/\"", "did you mean url_template?"),
        ] {
            let message = refusal(text);
            assert!(message.ends_with(advice), "{message}");
        }
        let message = refusal("zzz = 1");
        assert!(message.ends_with("unknown key zzz"), "{message}");
    }

    #[test]
    fn a_misspelt_variable_is_told_the_nearest_one_and_others_are_left_alone() {
        let known = ["ONCEWIRE_LISTEN", "ONCEWIRE_ACCESS_KEY", "ONCEWIRE_LOG"];
        let advice = |name| variable_advice(name, &known);
        assert_eq!(advice("ONCEWIRE_LISTN"), Some("ONCEWIRE_LISTEN"));
        assert_eq!(advice("ONCEWIRE_LISTEN"), None);
        assert_eq!(advice("ONCEWIRE_WEBHOOK_SECRET"), None, "a configuration may name it");
        assert_eq!(advice("LISTN"), None);
    }

    #[test]
    fn keys_of_azure_are_told_ours_or_that_none_is_needed() {
        for (text, advice) in [
            (
                "[[hubs.\"chat\".event_handlers]]\nurlTemplate = \"http://x/\"",
                "it is called url_template here",
            ),
            (
                "[[hubs.\"chat\".event_handlers]]\nurl_template = \"http://127.0.0.1:1/\"\nuserEventPattern = \"*\"",
                "it is called user_event_pattern here",
            ),
            (
                "[[hubs.\"chat\".event_handlers]]\nurl_template = \"http://127.0.0.1:1/\"\nauth = \"x\"",
                "bearer_token",
            ),
            ("[hubs.\"chat\"]\neventHandlers = []", "it is called event_handlers here"),
            ("[hubs.\"chat\"]\nanonymousConnectPolicy = \"allow\"", "it is called anonymous here"),
            (
                "[hubs.\"chat\"]\nwebSocketKeepAliveIntervalInSeconds = 20",
                "it is called websocket_ping_seconds here",
            ),
            ("sku = \"Free_F1\"", "no key is needed for it"),
            ("publicNetworkAccess = \"Enabled\"", "listen decides who can reach the gateway"),
        ] {
            let message = refusal(text);
            assert!(message.contains(advice), "{message}");
        }
    }

    #[test]
    fn a_tunnel_of_azures_samples_is_told_to_be_unnecessary() {
        let message = refusal(
            "[[hubs.\"chat\".event_handlers]]\nurl_template = \"tunnel:///eventhandler\"\nuser_event_pattern = \"*\"",
        );
        assert!(message.contains("no tunnel is needed") && message.contains("http://127.0.0.1"), "{message}");
    }
}
