//! What stands in bodies: content types, payloads, metadata.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use axum::body::Body;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue};
use bytes::{Bytes, BytesMut};
use encoding_rs::{Encoding, UTF_8};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body as _;
use mime::Mime;
use oncewire_protocol::filter::Filter;
use oncewire_protocol::session::MemoryBudget;
use oncewire_protocol::wire::{GroupName, Metadata, MetadataBuilder, Payload, PayloadKind};
use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::error::RestError;
use super::{query, route};

/// Headers that carry metadata begin so; the rest of the name is the key.
pub(super) const METADATA_PREFIX: &str = "x-webpubsub-metadata-";

/// What a text in UTF-8 may begin with.
const BYTE_ORDER_MARK: &[u8] = "\u{FEFF}".as_bytes();

/// How a body is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Media {
    Text(&'static Encoding),
    Json(&'static Encoding),
    Binary,
}

impl Media {
    /// What the content type says; binary without one. An empty one, as the server SDK of Java sends it, is none.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, RestError> {
        let mut values = headers.get_all(CONTENT_TYPE).iter().filter(|value| !is_blank(value));
        let value = match (values.next(), values.next()) {
            (None, _) => return Ok(Self::Binary),
            (Some(value), None) => value,
            (Some(_), Some(_)) => return Err(RestError::unsupported_media_type()),
        };
        let media = value.to_str().ok().and_then(|text| text.parse::<Mime>().ok());
        let media = media.ok_or_else(RestError::unsupported_media_type)?;
        let charset = match media.get_param(mime::CHARSET) {
            None => UTF_8,
            Some(label) => Encoding::for_label(label.as_str().as_bytes())
                .ok_or_else(RestError::unsupported_media_type)?,
        };
        match media.essence_str() {
            "text/plain" => Ok(Self::Text(charset)),
            "application/json" => Ok(Self::Json(charset)),
            "application/octet-stream" => Ok(Self::Binary),
            _ => Err(RestError::unsupported_media_type()),
        }
    }

    /// A body as what is sent.
    pub(super) fn payload(self, body: Bytes) -> Result<Payload, RestError> {
        let not_text =
            || RestError::bad_request("Request", "The request body is not valid text of its charset.");
        match self {
            Self::Binary => Ok(Payload { kind: PayloadKind::Binary, bytes: body }),
            Self::Text(charset) => Payload::text(in_utf8(charset, body)?).ok_or_else(not_text),
            Self::Json(charset) => Payload::json(json(charset, body)?).ok_or_else(not_json),
        }
    }
}

fn not_json() -> RestError {
    RestError::bad_request("Request", "The request body is not a valid JSON.")
}

/// Whether a header says nothing.
pub(super) fn is_blank(value: &HeaderValue) -> bool {
    value.as_bytes().trim_ascii().is_empty()
}

/// JSON as a message can hold it: without the mark of byte order that some applications begin texts with.
fn json(charset: &'static Encoding, body: Bytes) -> Result<Bytes, RestError> {
    let text = in_utf8(charset, body)?;
    Ok(if text.starts_with(BYTE_ORDER_MARK) { text.slice(BYTE_ORDER_MARK.len()..) } else { text })
}

fn in_utf8(charset: &'static Encoding, body: Bytes) -> Result<Bytes, RestError> {
    if charset == UTF_8 {
        return Ok(body);
    }
    let text = charset.decode_without_bom_handling_and_without_replacement(&body);
    let text = text.ok_or_else(|| {
        RestError::bad_request("Request", "The request body is not valid text of its charset.")
    })?;
    Ok(text.into_owned().into())
}

/// Refuses a body that is encoded: it would be taken as it stands.
fn check_not_encoded(headers: &HeaderMap) -> Result<(), RestError> {
    let is_none = |value: &HeaderValue| {
        let value = value.as_bytes().trim_ascii();
        value.is_empty() || value.eq_ignore_ascii_case(b"identity")
    };
    let is_plain = headers.get_all(CONTENT_ENCODING).iter().all(is_none);
    if is_plain { Ok(()) } else { Err(RestError::unsupported_content_encoding()) }
}

/// Reads a body up to a limit, whether its length is said before or not. It counts among the half messages until the request
/// is answered.
pub(super) async fn read(
    headers: &HeaderMap,
    body: Body,
    bytes_max: usize,
    budget: &Arc<MemoryBudget>,
) -> Result<CountedBody, RestError> {
    check_not_encoded(headers)?;
    let mut body = Limited::new(body, bytes_max);
    let mut counted = Counted::new(budget);
    let mut collected = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| unreadable(&*error, bytes_max))?;
        let Ok(data) = frame.into_data() else { continue };
        if collected.is_empty() && body.is_end_stream() {
            // Most come at once, and need no copy.
            counted.grow_to(data.len())?;
            return Ok(CountedBody { bytes: data, counted });
        }
        collected.extend_from_slice(&data);
        counted.grow_to(collected.capacity())?;
    }
    Ok(CountedBody { bytes: collected.freeze(), counted })
}

/// A body of a request that is not answered yet.
pub(super) struct CountedBody {
    pub(super) bytes: Bytes,
    counted: Counted,
}

impl CountedBody {
    /// Counts what is made of it too, which takes so many times as much.
    pub(super) fn count_times(&mut self, times: usize) -> Result<(), RestError> {
        self.counted.grow_to(self.bytes.len().saturating_mul(1 + times))
    }
}

fn unreadable(error: &(dyn Error + 'static), bytes_max: usize) -> RestError {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.is::<LengthLimitError>() {
            return RestError::body_too_large(bytes_max);
        }
        cause = error.source();
    }
    RestError::bad_request("Request", "The request body could not be read.")
}

/// A body that takes no more than this is read however much of others has come.
const SMALL_BODY_BYTES: usize = 64 << 10;

/// What a body takes, among the half messages, until this is dropped.
pub(super) struct Counted {
    budget: Arc<MemoryBudget>,
    bytes: usize,
}

impl Counted {
    /// Nothing yet.
    pub(super) fn new(budget: &Arc<MemoryBudget>) -> Self {
        Self { budget: Arc::clone(budget), bytes: 0 }
    }

    /// Says how much it takes now.
    ///
    /// # Errors
    /// When there is no room for that; it counts all the same until it is dropped.
    pub(super) fn grow_to(&mut self, bytes: usize) -> Result<(), RestError> {
        self.budget.change_half_message(self.bytes, bytes);
        self.bytes = bytes;
        let is_too_much = bytes > SMALL_BODY_BYTES && self.budget.has_too_much_in_halves();
        if is_too_much { Err(RestError::short_of_memory()) } else { Ok(()) }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.budget.change_half_message(self.bytes, 0);
    }
}

/// Metadata from headers: of several of one key the last counts, and of a list its last part.
pub(super) fn metadata(headers: &HeaderMap) -> Result<Metadata, RestError> {
    let refused =
        |what: &str| RestError::bad_request("Request", format!("Invalid message metadata: {what}."));
    let mut metadata = MetadataBuilder::default();
    for name in headers.keys() {
        let Some(key) = name.as_str().strip_prefix(METADATA_PREFIX) else { continue };
        let value = headers.get_all(name).iter().next_back();
        let value =
            value.and_then(|value| value.to_str().ok()).ok_or_else(|| refused("a value is not ASCII"))?;
        let value = value.rsplit(',').next().unwrap_or_default().trim();
        metadata.insert(key, value).map_err(|error| refused(&error.to_string()))?;
    }
    Ok(metadata.build())
}

/// Which connections to put into groups, or to take out.
#[derive(Debug)]
pub(super) struct Bulk {
    pub(super) groups: Vec<GroupName>,
    pub(super) filter: Option<Filter>,
}

/// Groups that one request may name. A session can't be in more by the default settings.
const GROUPS_PER_REQUEST_MAX: usize = 20_000;
/// How many times a bulk body's size what is made of it takes, about: names of few letters are kept in 32 bytes each.
const BULK_TIMES: usize = 8;

#[derive(Deserialize)]
struct BulkBody {
    groups: Names,
    filter: Option<String>,
}

/// Names of groups, of which those beyond the bound are counted and not kept.
struct Names {
    kept: Vec<String>,
    count: usize,
}

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reading;

        impl<'de> Visitor<'de> for Reading {
            type Value = Names;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of texts")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Names, A::Error> {
                let mut names = Names { kept: Vec::new(), count: 0 };
                while names.count < GROUPS_PER_REQUEST_MAX {
                    let Some(name) = list.next_element()? else { return Ok(names) };
                    names.kept.push(name);
                    names.count += 1;
                }
                while list.next_element::<IgnoredAny>()?.is_some() {
                    names.count += 1;
                }
                Ok(names)
            }
        }

        deserializer.deserialize_seq(Reading)
    }
}

impl Bulk {
    /// Reads the body of a bulk operation. It has to be called JSON.
    pub(super) fn read(media: Media, body: &mut CountedBody) -> Result<Self, RestError> {
        body.count_times(BULK_TIMES)?;
        Self::of(media, body.bytes.clone())
    }

    fn of(media: Media, body: Bytes) -> Result<Self, RestError> {
        let Media::Json(charset) = media else { return Err(RestError::unsupported_media_type()) };
        let body = json(charset, body)?;
        serde_json::from_slice::<IgnoredAny>(&body).map_err(|_| not_json())?;
        let BulkBody { groups, filter } = serde_json::from_slice(&body).map_err(|_| {
            let message =
                "The request body is no object with a list of texts `groups` and perhaps a text `filter`.";
            RestError::bad_request("Request", message)
        })?;
        if groups.count == 0 {
            return Err(RestError::bad_request("groups", "At least one group is required."));
        }
        if groups.count > GROUPS_PER_REQUEST_MAX {
            let message = format!("A request may name {GROUPS_PER_REQUEST_MAX} groups at most.");
            return Err(RestError::bad_request("groups", message));
        }
        let groups = groups.kept.iter().map(|name| route::group_name("groups", name));
        let filter = filter.filter(|text| !text.is_empty()).map(|text| query::filter(&text));
        Ok(Self { groups: groups.collect::<Result<_, _>>()?, filter: filter.transpose()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn media(content_type: &str) -> Result<Media, u16> {
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_str(content_type).unwrap())]);
        Media::of(&headers).map_err(|error| error.status.as_u16())
    }

    #[test]
    fn content_types_decide_the_kind_of_data() {
        assert_eq!(Media::of(&HeaderMap::new()).unwrap(), Media::Binary);
        for (content_type, expected) in [
            ("text/plain", Ok(Media::Text(UTF_8))),
            ("Text/Plain; charset=UTF-8", Ok(Media::Text(UTF_8))),
            ("text/plain;charset=\"utf-16le\"", Ok(Media::Text(encoding_rs::UTF_16LE))),
            ("application/json", Ok(Media::Json(UTF_8))),
            ("application/octet-stream", Ok(Media::Binary)),
            ("text/html", Err(415)),
            ("application/x-protobuf", Err(415)),
            ("text", Err(415)),
            ("text/plain; charset=nonsense", Err(415)),
        ] {
            assert_eq!(media(content_type), expected, "{content_type}");
        }
    }

    #[test]
    fn an_empty_content_type_was_refused() {
        for empty in ["", " ", "\t "] {
            assert_eq!(media(empty), Ok(Media::Binary), "{empty:?}");
        }
        let values = ["", "text/plain"].map(|value| (CONTENT_TYPE, HeaderValue::from_static(value)));
        let mut headers = HeaderMap::new();
        for (name, value) in values {
            headers.append(name, value);
        }
        assert_eq!(Media::of(&headers).unwrap(), Media::Text(UTF_8));
        headers.append(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        assert_eq!(Media::of(&headers).unwrap_err().status.as_u16(), 415);
    }

    #[test]
    fn json_behind_a_mark_of_byte_order_was_no_json() {
        let payload = |charset, body: &'static [u8]| {
            let payload = Media::Json(charset).payload(Bytes::from_static(body));
            payload.map(|payload| payload.bytes.to_vec()).map_err(|error| error.status.as_u16())
        };
        assert_eq!(payload(UTF_8, b"\xEF\xBB\xBF{\"n\": 1.0}"), Ok(b"{\"n\": 1.0}".to_vec()));
        assert_eq!(payload(encoding_rs::UTF_16LE, b"\xFF\xFE1\0"), Ok(b"1".to_vec()));
        for bad in [&b"\xEF\xBB\xBF"[..], b"\xEF\xBB\xBF\xEF\xBB\xBF1", b"1\xEF\xBB\xBF", b"\xEF\xBB1"] {
            assert_eq!(payload(UTF_8, bad), Err(400), "{bad:?}");
        }
        let bulk = "\u{FEFF}{\"groups\":[\"g\"]}".as_bytes();
        assert_eq!(Bulk::of(Media::Json(UTF_8), Bytes::from_static(bulk)).unwrap().groups.len(), 1);
        // A text is sent as it is.
        let text = Media::Text(UTF_8).payload(Bytes::from_static("\u{FEFF}hi".as_bytes())).unwrap();
        assert_eq!(text.bytes, "\u{FEFF}hi");
    }

    #[test]
    fn an_encoded_body_is_refused_and_the_identity_is_no_encoding() {
        let check = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(CONTENT_ENCODING, HeaderValue::from_str(value).unwrap());
            }
            check_not_encoded(&headers).map_err(|error| error.status.as_u16())
        };
        for plain in [&[][..], &[""], &[" "], &["identity"], &["Identity"]] {
            assert_eq!(check(plain), Ok(()), "{plain:?}");
        }
        for encoded in [&["gzip"][..], &["br"], &["x"], &["identity, gzip"], &["identity", "deflate"]] {
            assert_eq!(check(encoded), Err(415), "{encoded:?}");
        }
    }

    #[test]
    fn payloads_are_checked_and_kept_letter_by_letter() {
        let payload = |media: Media, body: &'static [u8]| {
            media.payload(Bytes::from_static(body)).map_err(|error| error.status.as_u16())
        };
        let bytes = |media, body| payload(media, body).map(|payload| payload.bytes.to_vec());
        assert_eq!(bytes(Media::Json(UTF_8), b" {\"n\": 1.0} "), Ok(b" {\"n\": 1.0} ".to_vec()));
        for good in [&b"\"hi\""[..], b"1", b"null", b"[]"] {
            assert_eq!(bytes(Media::Json(UTF_8), good), Ok(good.to_vec()));
        }
        for bad in [&b""[..], b"{", b"{} {}", b"\"\xff\"", b"nul"] {
            assert_eq!(bytes(Media::Json(UTF_8), bad), Err(400));
        }
        assert_eq!(bytes(Media::Text(UTF_8), b""), Ok(vec![]));
        assert_eq!(bytes(Media::Text(UTF_8), b"\xff"), Err(400));
        assert_eq!(bytes(Media::Text(encoding_rs::UTF_16LE), b"h\0i\0"), Ok(b"hi".to_vec()));
        assert_eq!(bytes(Media::Text(encoding_rs::UTF_16LE), b"h"), Err(400));
        assert_eq!(bytes(Media::Text(encoding_rs::WINDOWS_1252), b"\xe9"), Ok("é".as_bytes().to_vec()));
        assert_eq!(bytes(Media::Binary, b"\xff\0"), Ok(vec![0xff, 0]));
    }

    #[test]
    fn of_a_metadata_key_the_last_part_counts() {
        let headers = |entries: &[(&str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in entries {
                let name = axum::http::HeaderName::from_bytes(name.as_bytes()).unwrap();
                headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
            }
            metadata(&headers)
                .map(|all| all.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>())
        };
        let read = headers(&[
            ("X-WebPubSub-Metadata-Trace", "a, b"),
            ("x-webpubsub-metadata-trace", "c , d "),
            ("x-other", "1"),
        ]);
        assert_eq!(read.unwrap(), ["trace=d"]);
        assert!(headers(&[("x-webpubsub-metadata-k", "é")]).is_err());
        assert!(headers(&[("x-webpubsub-metadata-", "v")]).is_err());
        assert!(headers(&[("x-webpubsub-metadata-k", &"v".repeat(1025))]).is_err());
    }

    #[test]
    fn bulk_bodies_are_checked_whole() {
        let read = |body: &'static str| {
            Bulk::of(Media::Json(UTF_8), Bytes::from_static(body.as_bytes()))
                .map_err(|error| error.status.as_u16())
        };
        for everybody in [
            "{\"groups\":[\"g\",\"g\"]}",
            "{\"groups\":[\"g\"],\"filter\":null}",
            "{\"groups\":[\"g\"],\"filter\":\"\"}",
        ] {
            assert!(read(everybody).unwrap().filter.is_none(), "{everybody}");
        }
        assert!(read("{\"groups\":[\"g\"],\"filter\":\"true\"}").unwrap().filter.is_some());
        for bad in [
            "",
            "{}",
            "[]",
            "{\"groups\":[]}",
            "{\"groups\":null}",
            "{\"groups\":[\"g\",\" \"]}",
            "{\"groups\":[1]}",
            "{\"groups\":[\"g\"],\"filter\":\" \"}",
            "{\"groups\":[\"g\"],\"filter\":1}",
            "{\"groups\":[\"g\"],\"filter\":\"userId\"}",
        ] {
            assert_eq!(read(bad).unwrap_err(), 400, "{bad}");
        }
        let told = |body: &'static str| {
            let error = Bulk::of(Media::Json(UTF_8), Bytes::from_static(body.as_bytes())).unwrap_err();
            error.message.into_owned()
        };
        for no_json in ["", "{", "[1", "{\"groups\":[1]", "nul"] {
            assert!(told(no_json).contains("not a valid JSON"), "{no_json}");
        }
        for another_shape in [
            "{}",
            "[]",
            "null",
            "{\"groups\":\"g\"}",
            "{\"groups\":[1]}",
            "{\"groups\":[\"g\"],\"filter\":1}",
        ] {
            assert!(told(another_shape).contains("`groups`"), "{another_shape}");
        }
        assert_eq!(Bulk::of(Media::Binary, Bytes::new()).unwrap_err().status.as_u16(), 415);
    }

    #[test]
    fn a_request_names_no_more_groups_than_a_session_may_be_in() {
        let names = |count: usize| format!("{{\"groups\":[{}]}}", vec!["\"g\""; count].join(","));
        let read = |count: usize| Bulk::of(Media::Json(UTF_8), names(count).into());
        assert_eq!(read(GROUPS_PER_REQUEST_MAX).unwrap().groups.len(), GROUPS_PER_REQUEST_MAX);
        let error = read(GROUPS_PER_REQUEST_MAX + 1).unwrap_err();
        assert_eq!(error.status.as_u16(), 400);
        assert!(error.message.contains("20000 groups"), "{}", error.message);
        let mixed = names(GROUPS_PER_REQUEST_MAX + 1).replace("]}", ",1]}");
        assert_eq!(Bulk::of(Media::Json(UTF_8), mixed.into()).unwrap_err().status.as_u16(), 400);
    }
}
