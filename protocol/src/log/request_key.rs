//! Tells a repetition of an application's request from another request.
//!
//! ```text
//! id           XXH3-128 of the request's id, as the application chose it
//! fingerprint  XXH3-128 of: number of bytes and bytes of the id, of the method and of the target, then the body
//! number       8 bytes, little-endian
//! ```

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::Time;

/// A request of the application that has an id. Part of the record format, so its hashes never change within a record
/// version. What the fold depends on is part of it too, so that a changed configuration never changes what an old log
/// means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestKey {
    /// The request.
    pub name: RequestName,
    /// How long requests are remembered, in seconds.
    pub window_seconds: u32,
    /// How many requests are remembered, this one included.
    pub window_requests: u32,
}

/// What a request is recognised by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestName {
    /// Hash of the id alone.
    pub id: u128,
    /// Hash of everything that the request is.
    pub fingerprint: u128,
}

/// A request that was executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExecutedRequest {
    /// The request.
    pub name: RequestName,
    /// Its record's time.
    pub time: Time,
}

impl RequestName {
    /// The name of a request: its id, its method, its target (path and query, as they were sent) and its body.
    pub fn of(id: &str, method: &str, target: &str, body: &[u8]) -> Self {
        let mut hash = Xxh3::new();
        for part in [id, method, target] {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        hash.update(body);
        Self { id: xxh3_128(id.as_bytes()), fingerprint: hash.digest128() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_counts_and_the_id_is_shared() {
        let names = [
            RequestName::of("a", "POST", "/x", b"body"),
            RequestName::of("a", "PUT", "/x", b"body"),
            RequestName::of("a", "POST", "/xb", b"ody"),
            RequestName::of("a", "POST", "/x", b"bodY"),
            RequestName::of("a", "POST", "/x", b""),
        ];
        for (n, name) in names.iter().enumerate() {
            assert_eq!(name.id, names[0].id);
            assert!(names[n + 1..].iter().all(|other| other.fingerprint != name.fingerprint));
        }
        assert_ne!(RequestName::of("b", "POST", "/x", b"body").id, names[0].id);
        assert_eq!(RequestName::of("a", "POST", "/x", b"body"), names[0]);
    }
}
