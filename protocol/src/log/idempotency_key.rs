//! Tells a repetition of an application's request from another request.
//!
//! ```text
//! id           XXH3-128 of the request's id; of one that has a client's id too: number of bytes and bytes of that, then
//!              the id
//! fingerprint  XXH3-128 of: text id, method and target; number of headers; text name and value of each; then the body
//! text         number of bytes, bytes
//! number       8 bytes, little-endian
//! ```

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::Time;

/// A request of the application that has an id. Part of the record format, so its hashes never change within a record
/// version. What the fold depends on is part of it too, so that a changed configuration never changes what an old log
/// means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The request.
    pub name: RequestName,
    /// How long requests of its kind are remembered, in seconds.
    pub window_seconds: u32,
    /// How many requests of its kind are remembered, this one included.
    pub window_requests: u32,
    /// Of a repeatable request: when the application first sent it, in seconds since 1970-01-01 UTC by its own clock. It
    /// stands in each repetition, so it tells of one that is not remembered any more whether it may have been there.
    pub first_sent: Option<u64>,
}

/// What a request is recognised by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestName {
    /// Hash of the id alone.
    pub id: u128,
    /// Hash of everything that the request is.
    pub fingerprint: u128,
}

/// Everything that a request of the application is.
#[derive(Debug, Clone, Copy)]
pub struct RequestParts<'a> {
    /// What the application calls it.
    pub id: &'a str,
    /// What the id is unique within, where the application says so.
    pub client_id: Option<&'a str>,
    /// The method.
    pub method: &'a str,
    /// Path and query, as they were sent.
    pub target: &'a str,
    /// Those headers that say what is asked for, in an order that is the same for a repetition.
    pub headers: &'a [(&'a str, &'a [u8])],
    /// The body.
    pub body: &'a [u8],
}

/// A request that was executed, or of a repeatable one perhaps refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExecutedRequest {
    /// The request.
    pub name: RequestName,
    /// Its record's time.
    pub time: Time,
    /// See [`IdempotencyKey::first_sent`].
    pub first_sent: Option<u64>,
    /// Why it was refused; none if it was executed.
    pub refusal: Option<Refusal>,
}

/// Requests in a page of a checkpoint; part of its format. The tests of this crate have small ones, which fill and go.
pub const REQUESTS_PER_PAGE: u64 = if cfg!(test) { 4 } else { 1024 };

/// Which requests of a kind are remembered: they are numbered in the order in which they came.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestNumbers {
    /// Of the oldest.
    pub first: u64,
    /// Behind the newest.
    pub next: u64,
}

impl RequestNumbers {
    /// The pages that they are in, from the one of the oldest to the one that the next number follows in.
    pub fn pages(self) -> std::ops::Range<u64> {
        self.first / REQUESTS_PER_PAGE..self.next.div_ceil(REQUESTS_PER_PAGE)
    }
}

/// The two kinds of requests that are remembered apart from one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequestKind {
    /// The application has not asked for the same answer to every repetition.
    Plain,
    /// It has.
    Repeatable,
}

/// Names a page of a checkpoint with requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestPage {
    /// What is in it.
    pub kind: RequestKind,
    /// Its place: the numbers of its requests by [`REQUESTS_PER_PAGE`].
    pub number: u64,
}

/// The requests of the application that a hub remembers. They themselves are in pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestsCheckpoint {
    /// Those that are not repeatable.
    pub plain: RequestNumbers,
    /// Those that are.
    pub repeatable: RequestNumbers,
    /// The latest [`IdempotencyKey::first_sent`] of a repeatable request that is forgotten.
    pub forgotten_first_sent: Option<u64>,
}

/// Why a repeatable request was refused, so that its repetition is too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// No such session.
    UnknownConnection,
    /// A user without a session.
    UnknownUser,
    /// The session has as many literal rules as it may have.
    TooManyRules,
    /// A session would be in more groups than it may be in, or in groups with longer names.
    TooManyGroups,
}

impl IdempotencyKey {
    /// Whether the application has asked for the same answer to every repetition.
    pub fn is_repeatable(&self) -> bool {
        self.first_sent.is_some()
    }
}

impl RequestName {
    /// The name of a request.
    pub fn of(parts: RequestParts<'_>) -> Self {
        let RequestParts { id, client_id, method, target, headers, body } = parts;
        let mut hash = Xxh3::new();
        let number = |hash: &mut Xxh3, number: usize| hash.update(&(number as u64).to_le_bytes());
        let text = |hash: &mut Xxh3, text: &[u8]| {
            number(hash, text.len());
            hash.update(text);
        };
        for part in [id, method, target] {
            text(&mut hash, part.as_bytes());
        }
        number(&mut hash, headers.len());
        for (name, value) in headers {
            text(&mut hash, name.as_bytes());
            text(&mut hash, value);
        }
        hash.update(body);
        let id = match client_id {
            None => xxh3_128(id.as_bytes()),
            Some(client_id) => {
                let mut hash = Xxh3::new();
                text(&mut hash, client_id.as_bytes());
                hash.update(id.as_bytes());
                hash.digest128()
            }
        };
        Self { id, fingerprint: hash.digest128() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: RequestParts<'_> = RequestParts {
        id: "a",
        client_id: None,
        method: "POST",
        target: "/x",
        headers: &[("content-type", b"text/plain"), ("k", b"v")],
        body: b"body",
    };

    #[test]
    fn every_part_counts_and_the_id_is_shared() {
        let names = [
            FIRST,
            RequestParts { method: "PUT", ..FIRST },
            RequestParts { target: "/xb", ..FIRST },
            RequestParts { body: b"bodY", ..FIRST },
            RequestParts { body: b"", ..FIRST },
            RequestParts { headers: &[], ..FIRST },
            RequestParts { headers: &[("content-type", b"text/plain")], ..FIRST },
            RequestParts { headers: &[("content-type", b"application/json"), ("k", b"v")], ..FIRST },
            RequestParts { headers: &[("content-type", b"text/plain"), ("kv", b"")], ..FIRST },
        ]
        .map(RequestName::of);
        for (n, name) in names.iter().enumerate() {
            assert_eq!(name.id, names[0].id);
            assert!(names[n + 1..].iter().all(|other| other.fingerprint != name.fingerprint));
        }
        let other_id = RequestName::of(RequestParts { id: "b", ..FIRST });
        assert!(other_id.id != names[0].id && other_id.fingerprint != names[0].fingerprint);
        assert_eq!(RequestName::of(FIRST), names[0]);
    }

    #[test]
    fn an_id_is_unique_within_its_client() {
        let of = |client_id, id| RequestName::of(RequestParts { client_id, id, ..FIRST }).id;
        let ids =
            [of(None, "ab"), of(Some("a"), "b"), of(Some("b"), "b"), of(Some("ab"), ""), of(Some(""), "ab")];
        for (n, id) in ids.iter().enumerate() {
            assert!(!ids[n + 1..].contains(id), "{n}");
        }
        assert_eq!(of(Some("a"), "b"), ids[1]);
    }

    /// Computed with the hash's reference implementation over the layout that the module documents.
    #[test]
    fn the_hashes_are_fixed() {
        let name = RequestName::of(FIRST);
        assert_eq!((name.id, name.fingerprint), (ID, FINGERPRINT));
        let with_client = RequestParts { client_id: Some("c"), headers: &[], body: b"", ..FIRST };
        assert_eq!(RequestName::of(with_client).id, ID_OF_CLIENT);
    }

    const ID: u128 = 0xa96f_af70_5af1_6834_e6c6_32b6_1e96_4e1f;
    const FINGERPRINT: u128 = 0x24db_5575_8ef0_2bd3_82af_4bbb_680e_2d85;
    const ID_OF_CLIENT: u128 = 0x7cb7_8ce7_1432_0a8f_d943_3a7e_e384_9041;
}
