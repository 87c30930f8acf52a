//! The query of an upgrade request.

use std::borrow::Cow;

use oncewire_protocol::wire::GroupName;
use oncewire_protocol::wire::raw::RawTarget;

use crate::query::{Parameter, parameters};

/// The parameters that the Web PubSub client specification gives a meaning. Names count without regard to case, a
/// parameter that is there several times has its last value, and one with an empty value is as good as absent.
#[derive(Default)]
pub(super) struct Query<'a> {
    /// The client's access token.
    pub access_token: Option<Cow<'a, str>>,
    /// The hub, where the path has none.
    pub hub: Option<Cow<'a, str>>,
    /// The session to recover; makes the request a recovery.
    pub connection_id: Option<Cow<'a, str>>,
    /// Proof for the recovery.
    pub reconnection_token: Option<Cow<'a, str>>,
    mode: Option<Cow<'a, str>>,
    group: Option<Cow<'a, str>>,
    no_echo: Option<Cow<'a, str>>,
}

/// That a parameter that has a meaning is not UTF-8.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotUtf8;

/// That the parameters of raw clients make no sense.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InvalidMode;

impl<'a> Query<'a> {
    /// Reads a query as it stands in the URL; what has no meaning is passed over.
    ///
    /// # Errors
    /// When what has one is not UTF-8.
    pub(super) fn parse(query: &'a str) -> Result<Self, NotUtf8> {
        let mut parsed = Self::default();
        for Parameter { name, value, is_utf8 } in parameters(query) {
            if let Some(parameter) = parsed.parameter(&name) {
                let value = is_utf8.then_some(value).ok_or(NotUtf8)?;
                *parameter = Some(value).filter(|value| !value.is_empty());
            }
        }
        Ok(parsed)
    }

    fn parameter(&mut self, name: &str) -> Option<&mut Option<Cow<'a, str>>> {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        Some(match () {
            () if is("access_token") => &mut self.access_token,
            () if is("hub") => &mut self.hub,
            () if is("awps_connection_id") => &mut self.connection_id,
            () if is("awps_reconnection_token") => &mut self.reconnection_token,
            () if is("webpubsub_mode") => &mut self.mode,
            () if is("group") => &mut self.group,
            () if is("noEcho") => &mut self.no_echo,
            () => return None,
        })
    }

    /// Where a raw client's frames go; `None` in the mode in which they are events. The group and the echo count only
    /// in the mode that publishes to a group.
    pub(super) fn raw_target(&self) -> Result<Option<RawTarget>, InvalidMode> {
        let is = |text: &str, known: &str| text.eq_ignore_ascii_case(known);
        match self.mode.as_deref() {
            None => return Ok(None),
            Some(mode) if is(mode, "sendEvent") => return Ok(None),
            Some(mode) if is(mode, "sendToGroup") => {}
            Some(_) => return Err(InvalidMode),
        }
        let group = GroupName::new(self.group.as_deref().unwrap_or_default()).map_err(|_| InvalidMode)?;
        let no_echo = match self.no_echo.as_deref() {
            None => false,
            Some(text) if is(text, "false") => false,
            Some(text) if is(text, "true") => true,
            Some(_) => return Err(InvalidMode),
        };
        Ok(Some(RawTarget { group, no_echo }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(query: &str) -> Query<'_> {
        Query::parse(query).unwrap()
    }

    #[test]
    fn names_count_without_regard_to_case_and_the_last_value_wins() {
        let query = parsed("ACCESS_token=a&hub=x&Access_Token=b&HUB=y&awps_connection_ID=c");
        assert_eq!(query.access_token.as_deref(), Some("b"));
        assert_eq!(query.hub.as_deref(), Some("y"));
        assert_eq!(query.connection_id.as_deref(), Some("c"));
        assert_eq!(query.reconnection_token, None);
    }

    #[test]
    fn an_empty_value_is_as_good_as_none_also_after_another() {
        let query = parsed("awps_connection_id=&access_token=a&access_token=&hub");
        assert_eq!((query.connection_id, query.access_token, query.hub), (None, None, None));
    }

    #[test]
    fn values_are_decoded_once() {
        let query = parsed("hub=a%5B1%5D&awps_reconnection_token=x%2541+y&other=%FF");
        assert_eq!(query.hub.as_deref(), Some("a[1]"));
        assert_eq!(query.reconnection_token.as_deref(), Some("x%41 y"));
    }

    #[test]
    fn a_parameter_that_has_a_meaning_is_utf_8_even_where_another_one_follows() {
        for name in [
            "access_token",
            "HUB",
            "awps_connection_id",
            "awps_reconnection_token",
            "webpubsub_mode",
            "group",
            "noecho",
        ] {
            let query = format!("{name}=a%C3&{name}=b");
            assert_eq!(Query::parse(&query).err(), Some(NotUtf8), "{query}");
        }
        assert!(Query::parse("group%FF=a").is_ok());
    }

    #[test]
    fn raw_parameters_are_checked_where_they_count() {
        for events in [
            "",
            "webpubsub_mode=",
            "webpubsub_mode=SENDEVENT&group=&noEcho=perhaps",
            "group=%20&noEcho=perhaps",
            "group=g&noEcho=true",
        ] {
            assert_eq!(parsed(events).raw_target(), Ok(None), "{events}");
        }
        for (query, no_echo) in [
            ("webpubsub_mode=sendToGroup&group=g", false),
            ("webpubsub_mode=SendToGroup&group=g&noEcho=", false),
            ("webpubsub_mode=sendtogroup&group=%20&group=g&noecho=TRUE", true),
            ("webpubsub_mode=sendToGroup&group=g&noEcho=true&noEcho=False", false),
        ] {
            let group = GroupName::new("g").unwrap();
            assert_eq!(parsed(query).raw_target(), Ok(Some(RawTarget { group, no_echo })), "{query}");
        }
        let long = format!("webpubsub_mode=sendToGroup&group={}", "g".repeat(1025));
        for bad in [
            "webpubsub_mode=publish",
            "webpubsub_mode=sendToGroup",
            "webpubsub_mode=sendToGroup&group=",
            "webpubsub_mode=sendToGroup&group=%20",
            "webpubsub_mode=sendToGroup&group=g&noEcho=1",
            &long,
        ] {
            assert_eq!(parsed(bad).raw_target(), Err(InvalidMode), "{bad}");
        }
    }
}
