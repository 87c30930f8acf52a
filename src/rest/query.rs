//! The query of a request. Names count without regard to case; a parameter that means one thing stands once.

use std::ops::RangeInclusive;

use oncewire_protocol::filter::Filter;
use oncewire_protocol::wire::ConnectionId;
use oncewire_protocol::wire::limits::TTL_SECONDS_MAX;

use super::error::RestError;
use crate::admin::API_SUPPORTED_VERSIONS;
use crate::query::{Parameter, parameters};

/// Decoded parameters in their order.
#[derive(Debug)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Reads a query as it stands in the URL.
    pub(super) fn parse(query: &str) -> Result<Self, RestError> {
        let pairs = parameters(query).map(|Parameter { name, value, is_utf8 }| {
            let pair = (name.into_owned(), value.into_owned());
            let refused = || RestError::bad_request("Request", "A part of the query is not UTF-8.");
            is_utf8.then_some(pair).ok_or_else(refused)
        });
        Ok(Self(pairs.collect::<Result<_, RestError>>()?))
    }

    /// All values of a parameter, in their order.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| &**value)
    }

    /// The one value of a parameter, if it is there.
    pub(super) fn one(&self, name: &'static str) -> Result<Option<&str>, RestError> {
        let mut values = self.all(name);
        match (values.next(), values.next()) {
            (first, None) => Ok(first),
            _ => Err(RestError::bad_request(name, format!("The parameter {name} stands several times."))),
        }
    }

    /// An integer, if the parameter is there.
    pub(super) fn number(
        &self,
        name: &'static str,
        range: RangeInclusive<u32>,
    ) -> Result<Option<u32>, RestError> {
        let Some(text) = self.one(name)? else { return Ok(None) };
        let is_plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let number = text.parse().ok().filter(|number| is_plain && range.contains(number));
        let (from, to) = (range.start(), range.end());
        let refusal = || RestError::bad_request(name, format!("{name} is no integer from {from} to {to}."));
        number.map(Some).ok_or_else(refusal)
    }

    /// The version of the API that is asked for: a known one, or none at all.
    pub(super) fn api_version(&self) -> Result<Option<String>, RestError> {
        let refused = || RestError::bad_request("api-version", "The specified API version is not supported.");
        let Some(version) = self.one("api-version").map_err(|_| refused())? else { return Ok(None) };
        let is_known = API_SUPPORTED_VERSIONS.split(", ").any(|known| known == version);
        if is_known { Ok(Some(version.to_owned())) } else { Err(refused()) }
    }

    /// Connections to leave out.
    pub(super) fn excluded(&self) -> Vec<ConnectionId> {
        self.all("excluded").map(ConnectionId::new).collect()
    }

    /// The filter; an empty one selects all.
    pub(super) fn filter(&self) -> Result<Option<Filter>, RestError> {
        self.one("filter")?.filter(|text| !text.is_empty()).map(filter).transpose()
    }

    /// How long a message need be delivered, in seconds; 0 is for ever.
    pub(super) fn ttl_seconds(&self) -> Result<u16, RestError> {
        let seconds = self.number("messageTtlSeconds", 0..=TTL_SECONDS_MAX)?;
        Ok(seconds.and_then(|seconds| u16::try_from(seconds).ok()).unwrap_or(0))
    }
}

/// A filter from its text.
pub(super) fn filter(text: &str) -> Result<Filter, RestError> {
    Filter::parse(text).map_err(|error| RestError::bad_request("Request", error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> Query {
        Query::parse(text).unwrap()
    }

    #[test]
    fn values_are_decoded_once_and_are_not_divided() {
        let query = query("excluded=a%20b&x&excluded=e%2Cf,g&EXCLUDED=+%2B&filter=userId%20eq%20%27x%27");
        let excluded: Vec<_> = query.excluded().iter().map(ToString::to_string).collect();
        assert_eq!(excluded, ["a b", "e,f,g", " +"]);
        assert_eq!(query.filter().unwrap().unwrap().as_str(), "userId eq 'x'");
        assert!(Query::parse("a=%FF").is_err());
    }

    #[test]
    fn versions_are_the_five_or_none() {
        assert_eq!(query("").api_version().unwrap(), None);
        for known in API_SUPPORTED_VERSIONS.split(", ") {
            assert_eq!(query(&format!("Api-Version={known}")).api_version().unwrap().as_deref(), Some(known));
        }
        for bad in [
            "api-version=",
            "api-version=2099-01-01",
            "api-version=2024-12-01-preview",
            "api-version=2024-12-01&api-version=2024-12-01",
            "api-version=2024-12-01,2024-01-01",
            "api-version=2024-12-01,%202024-01-01",
        ] {
            assert!(query(bad).api_version().is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_are_plain_and_within_their_range() {
        for (text, seconds) in [("", 0), ("messageTtlSeconds=0", 0), ("messagettlseconds=300", 300)] {
            assert_eq!(query(text).ttl_seconds().unwrap(), seconds, "{text}");
        }
        for bad in ["-1", "301", "x", "", "1.0", "%2B1", "99999999999", "1&messageTtlSeconds=1"] {
            assert!(query(&format!("messageTtlSeconds={bad}")).ttl_seconds().is_err(), "{bad}");
        }
    }

    #[test]
    fn an_empty_filter_selects_all_and_a_blank_one_is_none() {
        assert_eq!(query("filter=").filter().unwrap(), None);
        assert!(query("filter=%20").filter().is_err());
        assert!(query("filter=true&filter=true").filter().is_err());
    }
}
