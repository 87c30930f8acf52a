//! Parts of URLs as tokens, headers and applications spell them.

use percent_encoding::percent_decode_str;
use url::Url;

/// The URL of an authority alone, such as a `Host` header names it, with an `http`, `https`, `ws` or `wss` scheme; none if
/// the authority is more than a host and perhaps a port.
pub fn dialled(scheme: &str, authority: &str) -> Option<Url> {
    let is_known = ["http", "https", "ws", "wss"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
    let is_plain = is_known && !authority.is_empty() && !authority.contains(['/', '?', '#', '@', '\\']);
    is_plain.then(|| Url::parse(&format!("{scheme}://{authority}/")).ok())?
}

/// The URL at which clients find a hub: `{base}/client/hubs/{hub}`; none if nothing can stand behind the base.
pub(super) fn client_endpoint(base: &Url, hub: &str) -> Option<Url> {
    let mut url = base.clone();
    url.set_query(None);
    url.set_fragment(None);
    url.path_segments_mut().ok()?.pop_if_empty().extend(["client", "hubs", hub]);
    Some(url)
}

/// The segments of a path without its first slash, each decoded once, without an empty tail; none for malformed UTF-8.
pub(super) fn segments(path: &str) -> Option<Vec<String>> {
    let decode = |segment| Some(percent_decode_str(segment).decode_utf8().ok()?.into_owned());
    let mut segments: Vec<String> = path.split('/').map(decode).collect::<Option<_>>()?;
    if segments.last().is_some_and(String::is_empty) {
        segments.pop();
    }
    Some(segments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_is_a_host_and_perhaps_a_port() {
        for (authority, url) in
            [("h.example", "http://h.example/"), ("H:80", "http://h/"), ("[::1]:8080", "http://[::1]:8080/")]
        {
            assert_eq!(dialled("http", authority).unwrap().as_str(), url);
        }
        for authority in ["", "h/", "h/x", "h?", "h#", "u@h", "@h", "h\\x", "h:x"] {
            assert_eq!(dialled("http", authority), None, "{authority}");
        }
        assert_eq!(dialled("ftp", "h"), None);
    }
}
