//! The WebSocket opening handshake (RFC 6455 section 4), both ends of it.
//!
//! Knows request and response heads. Does not know sockets, nor what a token is worth.

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest as _, Sha1};

/// Longest request or response head that either end takes.
pub const HEAD_BYTES_MAX: usize = 8 * 1024;

const HEADERS_MAX: usize = 32;

/// The nonce that every client sends. It proves nothing here: no cache stands between the two ends.
const CLIENT_KEY: &str = "b25jZXdpcmUtYmVuY2gtaw==";

/// A client's request, as far as the floor program looks at it.
#[derive(Debug, PartialEq, Eq)]
pub struct Upgrade {
    /// Path and query.
    pub target: String,
    /// Value of `Sec-WebSocket-Key`.
    pub key: String,
    /// Value of `Sec-WebSocket-Protocol`.
    pub subprotocol: Option<String>,
    /// Length of the head.
    pub head_bytes: usize,
}

/// The head of a client's request.
pub fn request(host: &str, target: &str, subprotocol: &str) -> String {
    format!(
        "GET {target} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {CLIENT_KEY}\r\nSec-WebSocket-Protocol: {subprotocol}\r\n\r\n"
    )
}

/// The head of a server's answer to `upgrade`: accepted, with the first subprotocol that was offered.
pub fn response(upgrade: &Upgrade) -> String {
    let accept = accept_key(&upgrade.key);
    let subprotocol = match upgrade.subprotocol.as_deref().and_then(|offer| offer.split(',').next()) {
        Some(name) => format!("Sec-WebSocket-Protocol: {}\r\n", name.trim()),
        None => String::new(),
    };
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n{subprotocol}\r\n"
    )
}

/// Reads a client's request from the start of `bytes`; `None` while it is incomplete.
///
/// # Errors
/// The bytes are no HTTP request, the head is longer than [`HEAD_BYTES_MAX`], or it asks for no WebSocket.
pub fn parse_request(bytes: &[u8]) -> Result<Option<Upgrade>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let Some(head_bytes) = head_length(request.parse(bytes)?, bytes.len())? else { return Ok(None) };
    let key = header(request.headers, "Sec-WebSocket-Key")?.context("not a WebSocket request")?.to_owned();
    let subprotocol = header(request.headers, "Sec-WebSocket-Protocol")?.map(str::to_owned);
    let target = request.path.unwrap_or_default().to_owned();
    Ok(Some(Upgrade { target, key, subprotocol, head_bytes }))
}

/// Reads a server's answer to [`request`] from the start of `bytes` and returns the length of its head; `None` while
/// it is incomplete.
///
/// # Errors
/// The head is too long or is not the 101 answer that was due, with this subprotocol.
pub fn parse_response(bytes: &[u8], subprotocol: &str) -> Result<Option<usize>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let Some(head_bytes) = head_length(response.parse(bytes)?, bytes.len())? else { return Ok(None) };
    match response.code {
        Some(101) => {}
        code => bail!("the handshake was answered by status {code:?}"),
    }
    let accept = header(response.headers, "Sec-WebSocket-Accept")?;
    ensure!(accept == Some(&accept_key(CLIENT_KEY)), "the answer holds a wrong Sec-WebSocket-Accept");
    let selected = header(response.headers, "Sec-WebSocket-Protocol")?;
    ensure!(selected == Some(subprotocol), "subprotocol {selected:?} was selected instead of {subprotocol}");
    Ok(Some(head_bytes))
}

fn head_length(status: httparse::Status<usize>, available_bytes: usize) -> Result<Option<usize>> {
    let length = match status {
        httparse::Status::Complete(length) => Some(length),
        httparse::Status::Partial => None,
    };
    ensure!(length.unwrap_or(available_bytes) <= HEAD_BYTES_MAX, "a head longer than {HEAD_BYTES_MAX} bytes");
    Ok(length)
}

fn header<'a>(headers: &[httparse::Header<'a>], name: &str) -> Result<Option<&'a str>> {
    let found = headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
    Ok(found.map(|header| std::str::from_utf8(header.value)).transpose()?)
}

fn accept_key(key: &str) -> String {
    let mut hash = Sha1::new();
    hash.update(key.as_bytes());
    hash.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    STANDARD.encode(hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derives_the_accept_key_of_rfc_6455() {
        assert_eq!(accept_key("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn both_ends_agree() {
        let sent = request("127.0.0.1:80", "/client/hubs/bench?access_token=t", "json.webpubsub.azure.v1");
        let upgrade = parse_request(sent.as_bytes()).unwrap().unwrap();
        assert_eq!(upgrade.target, "/client/hubs/bench?access_token=t");
        assert_eq!(upgrade.head_bytes, sent.len());
        let answer = response(&upgrade) + "rest";
        let head_bytes = parse_response(answer.as_bytes(), "json.webpubsub.azure.v1").unwrap();
        assert_eq!(head_bytes, Some(answer.len() - 4));
        assert!(parse_response(answer.as_bytes(), "another").is_err());
        for cut in [0, 10, sent.len() - 1] {
            assert_eq!(parse_request(&sent.as_bytes()[..cut]).unwrap(), None);
        }
    }

    #[test]
    fn refuses_a_refusal() {
        let refusal = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n";
        assert!(parse_response(refusal, "json.webpubsub.azure.v1").unwrap_err().to_string().contains("401"));
    }

    #[test]
    fn takes_the_longest_head_and_refuses_one_byte_more() {
        let fixed = request("", "/", "p").len() - 1;
        let fitting = "/".repeat(HEAD_BYTES_MAX - fixed);
        assert!(parse_request(request("", &fitting, "p").as_bytes()).unwrap().is_some());
        assert!(parse_request(request("", &(fitting + "/"), "p").as_bytes()).is_err());
        assert!(parse_request(&vec![b'G'; HEAD_BYTES_MAX + 1]).is_err(), "endless and incomplete");
    }
}
