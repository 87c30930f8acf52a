//! The cookies that handlers give to sessions, so that a balancer in front of them finds the same one again.
//!
//! They are kept in memory alone: after a restart of the gateway the balancer chooses anew.

use std::sync::atomic::{AtomicBool, Ordering};

use axum::http::header::SET_COOKIE;
use axum::http::{HeaderMap, HeaderValue, Uri};
use bytes::Bytes;
use cookie_store::CookieStore;
use lru::LruCache;
use oncewire_protocol::wire::{ConnectionId, HubName};
use parking_lot::Mutex;
use url::Url;

/// How many sessions may have cookies; one more, and the one that has not used its own for longest loses them.
const JARS_MAX: usize = 50_000;
/// A `Set-Cookie` line that is longer is ignored, as by browsers. In bytes.
const COOKIE_BYTES_MAX: usize = 4096;
/// The cookies of one session, with their attributes and what keeps them, in bytes; above it all of them are lost.
const JAR_BYTES_MAX: usize = 8 * 1024;
/// What a cookie takes beside its text, in bytes, about: its attributes are kept apart, some of them twice.
const COOKIE_ENTRY_BYTES: usize = 512;
/// The cookies of all sessions, in bytes; above it those lose theirs that have not used them for longest.
const JARS_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Whose cookies.
pub(super) type Owner = (HubName, ConnectionId);

/// The cookies of all sessions.
pub(super) struct Jars {
    /// Most applications set no cookie: then there is nothing to look up.
    is_used: AtomicBool,
    kept: Mutex<Kept>,
}

struct Kept {
    by_owner: LruCache<Owner, Jar>,
    /// Of all jars together.
    bytes: usize,
}

#[derive(Default)]
struct Jar {
    cookies: CookieStore,
    bytes: usize,
}

impl Default for Jars {
    fn default() -> Self {
        // With a capacity it would reserve room for all of them at once.
        let kept = Kept { by_owner: LruCache::unbounded(), bytes: 0 };
        Self { is_used: AtomicBool::default(), kept: Mutex::new(kept) }
    }
}

impl Jars {
    /// What to send to this URL as `Cookie`.
    pub(super) fn header(&self, owner: &Owner, uri: &Uri) -> Option<HeaderValue> {
        if !self.is_used.load(Ordering::Relaxed) {
            return None;
        }
        let mut kept = self.kept.lock();
        let jar = &kept.by_owner.get(owner)?.cookies;
        let url = Url::parse(&uri.to_string()).ok()?;
        let mut text = String::new();
        for (name, value) in jar.get_request_values(&url) {
            let separator = if text.is_empty() { "" } else { "; " };
            text.extend([separator, name, "=", value]);
        }
        if text.is_empty() { None } else { HeaderValue::from_maybe_shared(Bytes::from(text)).ok() }
    }

    /// Keeps what an answer from this URL sets.
    pub(super) fn keep(&self, owner: &Owner, uri: &Uri, headers: &HeaderMap) {
        if !headers.contains_key(SET_COOKIE) {
            return;
        }
        let Ok(url) = Url::parse(&uri.to_string()) else { return };
        self.is_used.store(true, Ordering::Relaxed);
        let mut kept = self.kept.lock();
        let jar = kept.by_owner.get_or_insert_mut_ref(owner, Jar::default);
        for line in headers.get_all(SET_COOKIE).iter().filter(|line| line.len() <= COOKIE_BYTES_MAX) {
            if let Ok(line) = std::str::from_utf8(line.as_bytes()) {
                // A cookie that is not for this URL, or can't be understood, is ignored.
                let _ = jar.cookies.parse(line, &url);
            }
        }
        let cookies = jar.cookies.iter_any();
        let mut bytes = cookies.map(|cookie| COOKIE_ENTRY_BYTES + cookie.to_string().len()).sum();
        if bytes > JAR_BYTES_MAX {
            jar.cookies = CookieStore::default();
            bytes = 0;
        }
        let before = std::mem::replace(&mut jar.bytes, bytes);
        kept.bytes = kept.bytes - before + bytes;
        while kept.by_owner.len() > JARS_MAX || kept.bytes > JARS_BYTES_MAX {
            let Some((_, jar)) = kept.by_owner.pop_lru() else { break };
            kept.bytes -= jar.bytes;
        }
    }

    /// The session is over.
    pub(super) fn forget(&self, owner: &Owner) {
        if self.is_used.load(Ordering::Relaxed) {
            let mut kept = self.kept.lock();
            let forgotten = kept.by_owner.pop(owner);
            kept.bytes -= forgotten.map_or(0, |jar| jar.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "http://app.example/hooks/message";

    fn owner(id: &str) -> Owner {
        (HubName::new("chat").unwrap(), ConnectionId::new(id))
    }

    fn set(jars: &Jars, id: &str, url: &str, lines: &[&str]) {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(SET_COOKIE, line.parse().unwrap());
        }
        jars.keep(&owner(id), &url.parse().unwrap(), &headers);
    }

    fn sent(jars: &Jars, id: &str, url: &str) -> Option<String> {
        jars.header(&owner(id), &url.parse().unwrap()).map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn each_session_has_its_own_and_ordinary_rules_hold() {
        let jars = Jars::default();
        assert_eq!(sent(&jars, "a", URL), None);
        set(
            &jars,
            "a",
            URL,
            &["node=1", "deep=2; Path=/hooks/message", "safe=3; Secure", "gone=4; Max-Age=0"],
        );
        set(&jars, "b", URL, &["node=9", "other=8; Domain=other.example"]);
        let all = sent(&jars, "a", URL).unwrap();
        let mut all: Vec<_> = all.split("; ").collect();
        all.sort_unstable();
        assert_eq!(all, ["deep=2", "node=1"]);
        assert_eq!(sent(&jars, "a", "http://app.example/hooks/other").as_deref(), Some("node=1"));
        assert_eq!(sent(&jars, "a", "http://other.example/hooks/message"), None);
        assert_eq!(sent(&jars, "b", URL).as_deref(), Some("node=9"));
        assert!(sent(&jars, "a", "https://app.example/hooks/x").unwrap().contains("safe=3"));
        set(&jars, "b", URL, &["node=; Max-Age=0"]);
        assert_eq!(sent(&jars, "b", URL), None);
        jars.forget(&owner("a"));
        assert_eq!(sent(&jars, "a", URL), None);
        assert_eq!(jars.kept.lock().by_owner.len(), 1);
    }

    #[test]
    fn a_jar_is_bounded_with_all_that_its_cookies_say() {
        let jars = Jars::default();
        let fits = "v".repeat(COOKIE_BYTES_MAX - 2);
        set(&jars, "a", URL, &[&format!("n={fits}v")]);
        assert_eq!(sent(&jars, "a", URL), None, "longer than a cookie may be");
        set(&jars, "a", URL, &[&format!("n={fits}")]);
        assert!(sent(&jars, "a", URL).is_some());
        set(&jars, "a", URL, &[&format!("m={fits}")]);
        assert_eq!(sent(&jars, "a", URL), None, "both together are too much");
        let deep = format!("Path=/hooks/{}", "d".repeat(COOKIE_BYTES_MAX / 2));
        for number in 0..1_000 {
            set(&jars, "a", URL, &[&format!("c{number}=; {deep}")]);
            assert!(jars.kept.lock().bytes <= JAR_BYTES_MAX, "paths counted for nothing");
        }
    }

    #[test]
    fn the_bytes_of_all_jars_are_bounded() {
        let jars = Jars::default();
        let value = "v".repeat(COOKIE_BYTES_MAX - 2);
        for number in 0..2 * JARS_BYTES_MAX / COOKIE_BYTES_MAX {
            set(&jars, &number.to_string(), URL, &[&format!("n={value}")]);
            assert!(jars.kept.lock().bytes <= JARS_BYTES_MAX);
        }
        assert_eq!(sent(&jars, "0", URL), None);
        let last = 2 * JARS_BYTES_MAX / COOKIE_BYTES_MAX - 1;
        assert!(sent(&jars, &last.to_string(), URL).is_some());
        let all: usize = jars.kept.lock().by_owner.iter().map(|(_, jar)| jar.bytes).sum();
        assert_eq!(jars.kept.lock().bytes, all);
    }

    #[test]
    fn the_jars_together_are_bounded_and_those_in_use_stay() {
        let jars = Jars::default();
        set(&jars, "used", URL, &["n=1"]);
        for number in 0..JARS_MAX - 1 {
            set(&jars, &number.to_string(), URL, &["n=1"]);
        }
        assert_eq!(sent(&jars, "used", URL).as_deref(), Some("n=1"));
        assert_eq!(jars.kept.lock().by_owner.len(), JARS_MAX);
        for number in 0..10 {
            set(&jars, &format!("new {number}"), URL, &["n=1"]);
            assert_eq!(sent(&jars, &number.to_string(), URL), None);
        }
        assert!(["used", "10", "new 9"].iter().all(|id| sent(&jars, id, URL).is_some()));
        assert_eq!(jars.kept.lock().by_owner.len(), JARS_MAX);
    }
}
