//! Trying again.

use std::time::Duration;

use axum::http::StatusCode;

use super::client::{Answer, ExchangeError};

/// Whether another attempt may bring another answer than one of this status.
pub(super) fn may_change(status: StatusCode) -> bool {
    status == StatusCode::REQUEST_TIMEOUT || status.is_server_error()
}

/// Has a request sent, and again after each of the delays as long as another attempt may change the result; the last
/// result counts.
pub(super) async fn attempts<F: Future<Output = Result<Answer, ExchangeError>>>(
    delays: &[Duration],
    mut send: impl FnMut() -> F,
) -> Result<Answer, ExchangeError> {
    for delay in delays {
        match send().await {
            Ok(answer) if may_change(answer.status) => {}
            Err(ExchangeError::Network(_)) => {}
            outcome => return outcome,
        }
        tokio::time::sleep(*delay).await;
    }
    send().await
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use axum::http::HeaderMap;
    use bytes::Bytes;
    use tokio::time::Instant;

    use super::super::memory::room;
    use super::*;

    const SECONDS: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(3), Duration::from_secs(5)];

    /// Sends with these results in turn, none being a network error; gives the last, and when each was asked for.
    async fn run(delays: &[Duration], results: &[Option<u16>]) -> (Option<u16>, Vec<u64>) {
        let start = Instant::now();
        let (mut at, mut left) = (Vec::new(), results.iter());
        let result = attempts(delays, || {
            at.push(start.elapsed().as_secs());
            ready(match left.next().expect("an attempt too many") {
                Some(status) => {
                    let status = StatusCode::from_u16(*status).unwrap();
                    Ok(Answer { status, headers: HeaderMap::new(), body: Bytes::new(), room: room() })
                }
                None => Err(ExchangeError::Network(String::new())),
            })
        })
        .await;
        (result.ok().map(|answer| answer.status.as_u16()), at)
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_change_is_tried_again_after_one_three_and_five_seconds() {
        assert_eq!(run(&SECONDS, &[Some(503), Some(503), Some(200)]).await, (Some(200), vec![0, 1, 4]));
        assert_eq!(
            run(&SECONDS, &[Some(408), None, Some(500), Some(599)]).await,
            (Some(599), vec![0, 1, 4, 9])
        );
        assert_eq!(run(&SECONDS, &[None, None, None, None]).await, (None, vec![0, 1, 4, 9]));
    }

    #[tokio::test(start_paused = true)]
    async fn what_will_not_change_is_not_tried_again() {
        for status in [200, 204, 302, 400, 401, 404, 429] {
            assert_eq!(run(&SECONDS, &[Some(status)]).await, (Some(status), vec![0]), "{status}");
        }
        assert_eq!(run(&[], &[Some(503)]).await, (Some(503), vec![0]));
    }
}
