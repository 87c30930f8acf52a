//! Where an event handler is: a URL with placeholders.

use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use url::{Host, Url};

/// An absolute `http` or `https` URL. `{hub}` stands for the hub, `{event}` for the event's name, and `{env:NAME}` for an
/// environment variable; in what is kept of it here the variables are filled in. `Display` and `Debug` show neither
/// their values nor the query.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct UrlTemplate {
    parts: Vec<Part>,
    shown: String,
}

#[derive(Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Hub,
    Event,
}

/// Why a text is no such template. Never holds the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadUrlTemplate {
    /// It is no URL, or of another kind.
    #[error(
        "it must be an absolute http or https URL without user and fragment, such as http://127.0.0.1:3000/eventhandler"
    )]
    NoUrl,
    /// The way in that Azure's samples need for a handler on one's own machine.
    #[error(
        "no tunnel is needed: the gateway reaches a handler on this machine by itself, such as http://127.0.0.1:3000/eventhandler"
    )]
    Tunnel,
    /// A placeholder where none may be.
    #[error("placeholders may stand in path and query, not in the host")]
    InHost,
    /// A brace that begins or ends no placeholder.
    #[error(
        "the placeholders are {{hub}}, {{event}} and {{env:NAME}}; any other brace is written as %7B or %7D"
    )]
    UnknownPlaceholder,
    /// A variable that is not there.
    #[error("the environment variable {0} is not set, or empty")]
    NoVariable(String),
}

/// A template with the hub filled in. `Debug` shows nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct EventUrl {
    /// What stands around the event's name, in order.
    pieces: Vec<String>,
}

/// What stays as it is when a value is filled in: what no URL gives a meaning.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

impl UrlTemplate {
    /// Reads a template; `variable` looks environment variables up.
    ///
    /// # Errors
    /// When the text is no template, or names a variable that is not there.
    pub fn parse(text: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Self, BadUrlTemplate> {
        let (scheme, behind_scheme) = text.split_once("://").ok_or(BadUrlTemplate::NoUrl)?;
        if scheme.eq_ignore_ascii_case("tunnel") {
            return Err(BadUrlTemplate::Tunnel);
        }
        let host = behind_scheme.split(['/', '?', '#', '\\']).next().unwrap_or_default();
        if host.contains(['{', '}']) {
            return Err(BadUrlTemplate::InHost);
        }
        let shown = text.split('?').next().unwrap_or_default().to_owned();
        let template = Self { parts: parts(text, variable)?, shown };
        template.url("hub", "event")?;
        template.of_hub("hub")?;
        Ok(template)
    }

    /// Fills in the hub.
    ///
    /// # Errors
    /// When the event's name would not be in the URL: a `..` behind it takes it away.
    pub fn of_hub(&self, hub: &str) -> Result<EventUrl, BadUrlTemplate> {
        let holds = |name: &str| {
            self.parts.iter().any(|part| matches!(part, Part::Text(text) if text.contains(name)))
                || hub.contains(name)
        };
        // Stands in for the event while the URL is brought into its normal form.
        let mut marker = "event".to_owned();
        while holds(&marker) {
            marker.push('x');
        }
        let url = self.url(hub, &marker)?;
        let pieces: Vec<String> = url.as_str().split(&marker).map(str::to_owned).collect();
        let events = self.parts.iter().filter(|part| **part == Part::Event).count();
        if pieces.len() == events + 1 { Ok(EventUrl { pieces }) } else { Err(BadUrlTemplate::NoUrl) }
    }

    /// Whether what is sent there can be read on the way: it is not encrypted, and leaves the machine.
    pub fn is_in_the_clear(&self) -> bool {
        let Ok(url) = self.url("hub", "event") else { return true };
        let is_loopback = match url.host() {
            Some(Host::Domain(name)) => name == "localhost",
            Some(Host::Ipv4(ip)) => ip.is_loopback(),
            Some(Host::Ipv6(ip)) => ip.is_loopback(),
            None => false,
        };
        url.scheme() == "http" && !is_loopback
    }

    fn url(&self, hub: &str, event: &str) -> Result<Url, BadUrlTemplate> {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Text(part) => text.push_str(part),
                Part::Hub => text.extend(utf8_percent_encode(hub, ESCAPED)),
                Part::Event => text.extend(utf8_percent_encode(event, ESCAPED)),
            }
        }
        let url = Url::parse(&text).map_err(|_| BadUrlTemplate::NoUrl)?;
        let is_plain = matches!(url.scheme(), "http" | "https")
            && url.has_host()
            && url.username().is_empty()
            && url.password().is_none()
            && url.fragment().is_none();
        if is_plain { Ok(url) } else { Err(BadUrlTemplate::NoUrl) }
    }
}

impl EventUrl {
    /// Whether it is the same for all events.
    pub fn is_fixed(&self) -> bool {
        self.pieces.len() == 1
    }

    /// Whether it is one of `https`.
    pub fn is_https(&self) -> bool {
        self.pieces.first().is_some_and(|piece| piece.starts_with("https:"))
    }

    /// The URL for an event of this name.
    pub fn of_event(&self, event: &str) -> String {
        match &*self.pieces {
            [whole] => whole.clone(),
            pieces => pieces.join(&utf8_percent_encode(event, ESCAPED).to_string()),
        }
    }
}

impl fmt::Debug for EventUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EventUrl(..)")
    }
}

impl fmt::Display for UrlTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for UrlTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UrlTemplate({})", self.shown)
    }
}

impl TryFrom<String> for UrlTemplate {
    type Error = BadUrlTemplate;

    fn try_from(text: String) -> Result<Self, BadUrlTemplate> {
        Self::parse(&text, environment)
    }
}

/// The name of the variable, if a placeholder, without its braces, stands for one.
pub(super) fn variable_name(placeholder: &str) -> Option<&str> {
    let (kind, name) = placeholder.split_once(':')?;
    (kind.eq_ignore_ascii_case("env") && !name.is_empty()).then_some(name)
}

/// A variable of this process, if it is there and not empty.
pub(super) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn parts(text: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Vec<Part>, BadUrlTemplate> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        let (plain, braced) = rest.split_at(at);
        let inside = braced.strip_prefix('{').ok_or(BadUrlTemplate::UnknownPlaceholder)?;
        let (name, behind) = inside.split_once('}').ok_or(BadUrlTemplate::UnknownPlaceholder)?;
        parts.push(Part::Text(plain.to_owned()));
        parts.push(match name.to_ascii_lowercase().as_str() {
            "hub" => Part::Hub,
            "event" => Part::Event,
            _ => {
                let name = variable_name(name).ok_or(BadUrlTemplate::UnknownPlaceholder)?;
                let value = variable(name).ok_or_else(|| BadUrlTemplate::NoVariable(name.to_owned()))?;
                Part::Text(utf8_percent_encode(&value, ESCAPED).to_string())
            }
        });
        rest = behind;
    }
    parts.push(Part::Text(rest.to_owned()));
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<UrlTemplate, BadUrlTemplate> {
        UrlTemplate::parse(text, |name| (name == "CODE").then(|| "s3 &é/".to_owned()))
    }

    fn filled(template: &str, hub: &str, event: &str) -> String {
        parse(template).unwrap().of_hub(hub).unwrap().of_event(event)
    }

    #[test]
    fn placeholders_are_filled_in_whatever_their_case() {
        let url = filled("https://app.internal/hooks/{HUB}/{Event}?code=s3", "Lobby", "chat.say");
        assert_eq!(url, "https://app.internal/hooks/Lobby/chat.say?code=s3");
        assert_eq!(filled("http://a.example", "h", "e"), "http://a.example/");
        assert_eq!(filled("HTTP://A.example:80/{event}?e={event}", "h", "e"), "http://a.example/e?e=e");
        assert_eq!(
            filled("http://a.example/event/eventx/{event}", "eventxx", "e"),
            "http://a.example/event/eventx/e"
        );
        assert_eq!(filled("http://[::1]:3000/{hub}", "h", "e"), "http://[::1]:3000/h");
    }

    #[test]
    fn values_are_escaped() {
        assert_eq!(
            filled("http://a.example/{hub}/{event}", "a`b,[c]", "e-f_g.h"),
            "http://a.example/a%60b%2C%5Bc%5D/e-f_g.h"
        );
        assert_eq!(
            filled("http://a.example/{env:CODE}/x?code={ENV:CODE}", "h", "e"),
            "http://a.example/s3%20%26%C3%A9%2F/x?code=s3%20%26%C3%A9%2F"
        );
        assert_eq!(
            filled("http://bücher.example/ü ?ü", "h", "e"),
            "http://xn--bcher-kva.example/%C3%BC%20?%C3%BC"
        );
    }

    #[test]
    fn what_is_no_template_is_refused() {
        for (text, error) in [
            ("", BadUrlTemplate::NoUrl),
            ("app/{event}", BadUrlTemplate::NoUrl),
            ("/eventhandler", BadUrlTemplate::NoUrl),
            ("tunnel:///eventhandler", BadUrlTemplate::Tunnel),
            ("ftp://a.example/", BadUrlTemplate::NoUrl),
            ("http://", BadUrlTemplate::NoUrl),
            ("http://user@a.example/", BadUrlTemplate::NoUrl),
            ("http://user:hidden@a.example/", BadUrlTemplate::NoUrl),
            ("http://a.example/#part", BadUrlTemplate::NoUrl),
            ("http://a.example:99999/", BadUrlTemplate::NoUrl),
            ("http://a.example/{event}/../x", BadUrlTemplate::NoUrl),
            ("http://{hub}.example/", BadUrlTemplate::InHost),
            ("http://a.example:{env:CODE}/", BadUrlTemplate::InHost),
            ("http://a.example{event}", BadUrlTemplate::InHost),
            ("http://a.example/{event", BadUrlTemplate::UnknownPlaceholder),
            ("http://a.example/event}", BadUrlTemplate::UnknownPlaceholder),
            ("http://a.example/{}", BadUrlTemplate::UnknownPlaceholder),
            ("http://a.example/{env:}", BadUrlTemplate::UnknownPlaceholder),
            ("http://a.example/{{event}}", BadUrlTemplate::UnknownPlaceholder),
            ("http://a.example/?c={@Microsoft.KeyVault(SecretUri=x)}", BadUrlTemplate::UnknownPlaceholder),
            ("http://a.example/{env:NONE}", BadUrlTemplate::NoVariable("NONE".to_owned())),
        ] {
            assert_eq!(parse(text).err(), Some(error), "{text}");
        }
    }

    #[test]
    fn neither_query_nor_variables_are_shown() {
        let template = parse("http://a.example/{env:CODE}/{event}?code=hidden&more={env:CODE}").unwrap();
        assert_eq!(template.to_string(), "http://a.example/{env:CODE}/{event}");
        let url = template.of_hub("h").unwrap();
        let shown = format!("{template:?} {url:?}");
        assert!(!shown.contains("hidden") && !shown.contains("s3"), "{shown}");
    }

    #[test]
    fn what_stays_on_the_machine_is_not_in_the_clear() {
        for (url, expected) in [
            ("http://a.example/", true),
            ("http://192.0.2.1/", true),
            ("https://a.example/", false),
            ("http://localhost:1/", false),
            ("http://127.9.9.9/", false),
            ("http://[::1]/", false),
        ] {
            assert_eq!(parse(url).unwrap().is_in_the_clear(), expected, "{url}");
        }
    }
}
