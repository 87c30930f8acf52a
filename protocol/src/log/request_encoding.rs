//! Stable encoding of the pages of requests in checkpoints: see [`checkpoint_encoding`](super::checkpoint_encoding).

use bytes::{Buf, BufMut, Bytes};

use super::checkpoint_encoding::{CheckpointError, decode, differences, encode, sums};
use super::numbers::{refusal_number, refusal_of};
use super::{ExecutedRequest, REQUESTS_PER_PAGE, RequestKind, RequestName, Time};

/// What the name of a request takes.
const REQUEST_NAME_BYTES: usize = 32;

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StoredRequests {
    /// Id and fingerprint of each, 16 bytes each, big-endian.
    #[prost(bytes = "bytes", tag = "1")]
    pub names: Bytes,
    #[prost(uint64, repeated, tag = "2")]
    pub times: Vec<u64>,
    /// Of repeatable ones.
    #[prost(uint64, repeated, tag = "3")]
    pub first_sent: Vec<u64>,
    /// 0 for one that was executed; empty when all are.
    #[prost(uint32, repeated, tag = "4")]
    pub refusals: Vec<u32>,
}

/// The stored bytes of a page.
pub fn encode_requests(requests: &[ExecutedRequest]) -> Bytes {
    let mut names = Vec::with_capacity(requests.len() * REQUEST_NAME_BYTES);
    for ExecutedRequest { name, .. } in requests {
        names.put_u128(name.id);
        names.put_u128(name.fingerprint);
    }
    let has_refusals = requests.iter().any(|request| request.refusal.is_some());
    let refusals = requests.iter().map(|request| request.refusal.map_or(0, refusal_number));
    encode(&StoredRequests {
        names: names.into(),
        times: differences(requests.iter().map(|request| request.time.0)),
        first_sent: differences(requests.iter().filter_map(|request| request.first_sent)),
        refusals: refusals.filter(|_| has_refusals).collect(),
    })
}

/// Reads a page.
///
/// # Errors
/// When it is not one of this kind.
pub fn decode_requests(kind: RequestKind, stored: Bytes) -> Result<Vec<ExecutedRequest>, CheckpointError> {
    let StoredRequests { mut names, times, first_sent, refusals } = decode(stored)?;
    let first_sents = if kind == RequestKind::Repeatable { times.len() } else { 0 };
    if names.len() != times.len() * REQUEST_NAME_BYTES
        || times.len() as u64 > REQUESTS_PER_PAGE
        || first_sent.len() != first_sents
        || (!refusals.is_empty() && refusals.len() != times.len())
    {
        return Err(CheckpointError::Invalid("list of requests"));
    }
    let first_sents = sums(&first_sent).map(Some).chain(std::iter::repeat(None));
    let refusals = refusals.into_iter().chain(std::iter::repeat(0));
    let requests = sums(&times).zip(first_sents).zip(refusals).map(|((time, first_sent), refusal)| {
        let name = RequestName { id: names.get_u128(), fingerprint: names.get_u128() };
        let refusal = match refusal {
            0 => None,
            number => Some(refusal_of(number).ok_or(CheckpointError::Invalid("refusal"))?),
        };
        Ok(ExecutedRequest { name, time: Time(time), first_sent, refusal })
    });
    requests.collect()
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::log::Refusal;

    fn request(is_repeatable: bool) -> impl Strategy<Value = ExecutedRequest> {
        let refusals = vec![
            Refusal::UnknownConnection,
            Refusal::UnknownUser,
            Refusal::TooManyRules,
            Refusal::TooManyGroups,
        ];
        let refusal = proptest::option::of(select(refusals));
        let parts = (any::<u128>(), any::<u128>(), any::<u64>(), any::<u64>(), refusal);
        parts.prop_map(move |(id, fingerprint, time, first_sent, refusal)| ExecutedRequest {
            name: RequestName { id, fingerprint },
            time: Time(time),
            first_sent: is_repeatable.then_some(first_sent),
            refusal: refusal.filter(|_| is_repeatable),
        })
    }

    proptest! {
        #[test]
        fn pages_come_back(plain in vec(request(false), 0..5), repeatable in vec(request(true), 0..5)) {
            for (kind, page) in [(RequestKind::Plain, plain), (RequestKind::Repeatable, repeatable)] {
                prop_assert_eq!(decode_requests(kind, encode_requests(&page)), Ok(page));
            }
        }

        #[test]
        fn any_bytes_are_a_page_or_an_error(bytes in vec(any::<u8>(), 0..200)) {
            let stored = Bytes::from([&[1][..], &bytes].concat());
            for kind in [RequestKind::Plain, RequestKind::Repeatable] {
                if let Ok(page) = decode_requests(kind, stored.clone()) {
                    prop_assert_eq!(decode_requests(kind, encode_requests(&page)), Ok(page));
                }
            }
        }
    }

    #[test]
    fn the_bytes_of_a_page_are_fixed() {
        let request = |id, time, first_sent, refusal| ExecutedRequest {
            name: RequestName { id, fingerprint: 2 },
            time: Time(time),
            first_sent,
            refusal,
        };
        let name = |id: u128| [id.to_be_bytes(), 2u128.to_be_bytes()].concat();
        let plain = [&[1, 0x0a, 64][..], &name(1), &name(1 << 120), &[0x12, 3, 0xac, 0x02, 1]];
        let page = [request(1, 300, None, None), request(1 << 120, 301, None, None)];
        assert_eq!(encode_requests(&page), plain.concat());
        let difference = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        let repeatable = [
            &[1, 0x0a, 64][..],
            &name(1),
            &name(3),
            &[0x12, 3, 0xac, 0x02, 1],
            &[0x1a, 12, 0x84, 0x07],
            &difference,
            &[0x22, 2, 0, 3],
        ];
        let page =
            [request(1, 300, Some(900), None), request(3, 301, Some(899), Some(Refusal::TooManyRules))];
        assert_eq!(encode_requests(&page), repeatable.concat());
    }

    #[test]
    fn a_page_that_does_not_fit_its_kind_is_an_error() {
        let names = || Bytes::from(vec![0; REQUEST_NAME_BYTES]);
        let one = StoredRequests { names: names(), times: vec![1], first_sent: vec![1], refusals: vec![] };
        let read = |page: &StoredRequests| decode_requests(RequestKind::Repeatable, encode(page));
        assert!(read(&one).is_ok());
        assert!(decode_requests(RequestKind::Plain, encode(&one)).is_err());
        for (broken, what) in [
            (StoredRequests { names: Bytes::new(), ..one.clone() }, "list of requests"),
            (StoredRequests { names: names().slice(1..), ..one.clone() }, "list of requests"),
            (StoredRequests { first_sent: vec![], ..one.clone() }, "list of requests"),
            (StoredRequests { refusals: vec![0, 0], ..one.clone() }, "list of requests"),
            (StoredRequests { refusals: vec![9], ..one.clone() }, "refusal"),
        ] {
            assert_eq!(read(&broken), Err(CheckpointError::Invalid(what)));
        }
        let many = REQUESTS_PER_PAGE as usize + 1;
        let names = vec![0; many * REQUEST_NAME_BYTES].into();
        let long =
            StoredRequests { names, times: vec![0; many], first_sent: vec![0; many], refusals: vec![] };
        assert_eq!(read(&long), Err(CheckpointError::Invalid("list of requests")));
    }
}
