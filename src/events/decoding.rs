//! The content encoding of an answer. None is asked for, and some handlers compress all that they say nevertheless.

use std::io::Read as _;

use axum::http::header::CONTENT_ENCODING;
use axum::http::{HeaderMap, HeaderValue};
use bytes::Bytes;
use flate2::read::MultiGzDecoder;

use super::client::{Answer, ExchangeError};
use super::memory::{ANSWER_BYTES_MAX, AnswerRoom};

/// After so many bytes of what is unzipped its room is looked at.
const PIECE_BYTES: u64 = 64 * 1024;

/// The answer with its body as it was before it was encoded: what is still encoded is never taken for a message.
pub(super) async fn decoded(answer: Answer) -> Result<Answer, ExchangeError> {
    if answer.body.is_empty() || !is_encoded(&answer.headers)? {
        return Ok(answer);
    }
    let Answer { status, headers, body, mut room } = answer;
    // Up to 16 MiB of it: not beside the sockets.
    let unzipping = tokio::task::spawn_blocking(move || unzip(&body, &mut room).map(|body| (body, room)));
    let (body, room) = unzipping.await.unwrap_or(Err(ExchangeError::BadEncoding))?;
    Ok(Answer { status, headers, body, room })
}

/// Whether it is encoded, and by gzip alone.
fn is_encoded(headers: &HeaderMap) -> Result<bool, ExchangeError> {
    let lines = headers.get_all(CONTENT_ENCODING).iter().map(HeaderValue::as_bytes);
    let names = lines.flat_map(|line| line.split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
    let mut names = names.filter(|name| !name.is_empty() && !name.eq_ignore_ascii_case(b"identity"));
    match (names.next(), names.next()) {
        (None, _) => Ok(false),
        (Some(one), None) if one.eq_ignore_ascii_case(b"gzip") || one.eq_ignore_ascii_case(b"x-gzip") => {
            Ok(true)
        }
        _ => Err(ExchangeError::UnknownEncoding),
    }
}

/// A small body can stand for a huge one, so no more is unpacked than may be.
fn unzip(body: &[u8], room: &mut AnswerRoom) -> Result<Bytes, ExchangeError> {
    let mut unzipped = Vec::new();
    let mut reader = MultiGzDecoder::new(body);
    loop {
        let before = unzipped.len();
        let piece = (&mut reader).take(PIECE_BYTES).read_to_end(&mut unzipped);
        piece.map_err(|_| ExchangeError::BadEncoding)?;
        if unzipped.len() > ANSWER_BYTES_MAX {
            return Err(ExchangeError::TooLarge);
        }
        if unzipped.len() == before {
            return Ok(unzipped.into());
        }
        // What it was unzipped from is there as well.
        room.grow_to(body.len() + unzipped.len())?;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use axum::http::StatusCode;
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::super::memory::room;
    use super::*;

    fn zipped(body: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(body).unwrap();
        encoder.finish().unwrap()
    }

    async fn read(encodings: &[&'static str], body: &[u8]) -> Result<Bytes, String> {
        let mut headers = HeaderMap::new();
        for encoding in encodings {
            headers.append(CONTENT_ENCODING, HeaderValue::from_static(encoding));
        }
        let answer =
            Answer { status: StatusCode::OK, headers, body: Bytes::copy_from_slice(body), room: room() };
        decoded(answer).await.map(|answer| answer.body).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn an_answer_in_gzip_was_passed_on_to_the_client_as_it_was() {
        let body = zipped(b"{\"n\": 1}");
        for encodings in [&["gzip"][..], &["GZIP"], &["x-gzip"], &["identity, gzip"], &["", "gzip"]] {
            assert_eq!(read(encodings, &body).await, Ok(Bytes::from_static(b"{\"n\": 1}")), "{encodings:?}");
        }
        let two = [zipped(b"one "), zipped(b"two")].concat();
        assert_eq!(read(&["gzip"], &two).await, Ok(Bytes::from_static(b"one two")));
        for none in [&[][..], &["identity"], &[""]] {
            assert_eq!(read(none, &body).await, Ok(Bytes::from(body.clone())), "{none:?}");
        }
        assert_eq!(read(&["br"], b"").await, Ok(Bytes::new()), "nothing is nothing in any encoding");
    }

    #[tokio::test]
    async fn what_can_not_be_decoded_is_a_failure() {
        let body = zipped(b"hello");
        for other in [&["br"][..], &["deflate"], &["gzip, gzip"], &["gzip", "br"], &["zstd"]] {
            let error = read(other, &body).await.unwrap_err();
            assert!(error.contains("content encoding"), "{error}");
        }
        for broken in [&b"hello"[..], &body[..body.len() - 1], &[&body[..], b"x"].concat()] {
            let error = read(&["gzip"], broken).await.unwrap_err();
            assert!(error.contains("not what its content encoding says"), "{broken:?}: {error}");
        }
    }

    #[tokio::test]
    async fn the_bound_holds_for_what_comes_out() {
        let most = vec![0; ANSWER_BYTES_MAX];
        let body = zipped(&most);
        assert!(body.len() < ANSWER_BYTES_MAX / 50);
        assert_eq!(read(&["gzip"], &body).await.map(|body| body.len()), Ok(ANSWER_BYTES_MAX));
        let error = read(&["gzip"], &zipped(&[&most[..], b"\0"].concat())).await.unwrap_err();
        assert!(error.contains("larger than"), "{error}");
    }
}
