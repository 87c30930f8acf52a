use super::*;
use crate::log::{Body, BootId, Certainty, Fingerprint, Key, Time};
use crate::session::kept_capacity::KEPT_CAPACITY;
use crate::wire::{ConnectionId, GroupName};

#[test]
fn a_batch_takes_the_whole_queue_and_what_comes_later_waits_for_the_next() {
    let mut requests = Requests::default();
    push(&mut requests, [Some(1), Some(2)]);
    let first = requests.next_batch(append_all()).records;
    assert_eq!((first.len(), requests.batch_number()), (2, 1));
    push(&mut requests, [Some(3)]);
    for record in &first {
        assert!(requests.has_batch());
        assert!(requests.note(&record.key.boot, Outcome::Applied));
        assert!(requests.settle_next(&AckWindow::new(9)).is_some());
    }
    assert!(!requests.has_batch() && !requests.is_empty());
    assert_eq!((requests.next_batch(append_all()).records.len(), requests.batch_number()), (1, 2));
}

#[test]
fn slots_are_settled_from_the_front_and_none_past_one_that_is_pending() {
    let mut requests = Requests::default();
    push(&mut requests, [Some(1), Some(2), Some(3), Some(4)]);
    let mut append = append_all();
    let Begun { records, .. } = requests.next_batch(|message, known| match message.ack_id() {
        Some(1 | 3) => Slot::Answer(Some(Downstream::Pong)),
        _ => append(message, known),
    });
    assert_eq!(settled(&mut requests), ["pong"]);
    assert!(requests.note(&records[1].key.boot, Outcome::Applied));
    assert_eq!(settled(&mut requests), Vec::<String>::new());
    assert!(requests.note(&records[0].key.boot, Outcome::Failed));
    assert_eq!(settled(&mut requests), ["ack 2 InternalServerError", "pong", "ack 4"]);
    assert!(requests.is_empty());
}

#[test]
fn an_outcome_counts_once_and_for_its_own_record_only() {
    let mut requests = Requests::default();
    push(&mut requests, [Some(1)]);
    let records = requests.next_batch(append_all()).records;
    let other = BootKey { counter: 99, ..records[0].key.boot };
    assert!(!requests.note(&other, Outcome::Applied));
    assert!(requests.note(&records[0].key.boot, Outcome::Applied));
    assert!(!requests.note(&records[0].key.boot, Outcome::Failed));
    assert_eq!(settled(&mut requests), ["ack 1"]);
    assert!(!requests.note(&records[0].key.boot, Outcome::Applied));
}

#[test]
fn the_judge_is_told_the_ack_ids_that_the_batch_appends_already() {
    let mut requests = Requests::default();
    push(&mut requests, [Some(1), None, Some(2), Some(3)]);
    let mut told = Vec::new();
    let mut append = append_all();
    requests.next_batch(|message, known| {
        told.push(known.iter().copied().collect::<Vec<_>>());
        if message.ack_id() == Some(2) { Slot::Answer(None) } else { append(message, known) }
    });
    assert_eq!(told, [vec![], vec![1], vec![1], vec![1]]);
}

#[test]
fn a_repeat_is_answered_by_the_outcome_of_its_original() {
    for (outcome, repeated, expected) in [
        (Outcome::Applied, fingerprint(1), "ack 1 Duplicate"),
        (Outcome::Applied, fingerprint(2), "ack 1 PayloadMismatch"),
        (Outcome::Failed, fingerprint(1), "ack 1 InternalServerError"),
    ] {
        let mut requests = Requests::default();
        push(&mut requests, [Some(1), Some(1)]);
        let mut append = append_all();
        let Begun { records, .. } = requests.next_batch(|message, known| {
            if known.contains(&1) {
                Slot::Repeat(AckKey { ack_id: 1, fingerprint: repeated })
            } else {
                append(message, known)
            }
        });
        let mut window = AckWindow::new(9);
        assert!(requests.settle_next(&window).is_none());
        requests.note(&records[0].key.boot, outcome);
        assert!(requests.settle_next(&window).is_some());
        if outcome == Outcome::Applied {
            window.insert(1, fingerprint(1));
        }
        let answer = requests.settle_next(&window).unwrap().answer;
        assert_eq!(short(answer.as_ref()), expected);
    }
}

#[test]
fn every_request_gives_back_its_bytes_and_only_those_with_an_ack_id_an_answer() {
    let mut requests = Requests::default();
    for (ack_id, bytes) in [(None, 5), (Some(1), 7)] {
        requests.push(Request { message: join(ack_id), bytes });
    }
    for record in requests.next_batch(append_all()).records {
        requests.note(&record.key.boot, Outcome::Applied);
    }
    let settled: Vec<Settled> = std::iter::from_fn(|| requests.settle_next(&AckWindow::new(9))).collect();
    let settled: Vec<_> = settled.iter().map(|settled| (settled.answer.is_some(), settled.bytes)).collect();
    assert_eq!(settled, [(false, 5), (true, 7)]);
}

#[test]
fn a_batch_that_was_in_doubt_once_never_fails_for_certain_and_the_next_begins_without_doubt() {
    let mut requests = Requests::default();
    push(&mut requests, [Some(1)]);
    let records = requests.next_batch(append_all()).records;
    assert!(requests.has_certainly_failed(Certainty::Definite));
    assert!(!requests.has_certainly_failed(Certainty::Indefinite));
    assert!(!requests.has_certainly_failed(Certainty::Definite));
    assert_eq!(requests.unsettled().count(), 1);
    requests.note(&records[0].key.boot, Outcome::Applied);
    assert_eq!(requests.unsettled().count(), 0);
    settled(&mut requests);
    push(&mut requests, [Some(2)]);
    requests.next_batch(append_all());
    assert!(requests.has_certainly_failed(Certainty::Definite));
}

#[test]
fn memory_of_a_burst_is_given_back() {
    let mut requests = Requests::default();
    push(&mut requests, (0..1_000).map(Some));
    for record in requests.next_batch(append_all()).records {
        requests.note(&record.key.boot, Outcome::Applied);
    }
    assert_eq!(settled(&mut requests).len(), 1_000);
    assert!(requests.queue.capacity() <= KEPT_CAPACITY && requests.batch.capacity() <= KEPT_CAPACITY);
}

fn join(ack_id: Option<AckId>) -> Upstream {
    Upstream::JoinGroup { group: GroupName::new("g").unwrap(), ack_id }
}

fn push(requests: &mut Requests, ack_ids: impl IntoIterator<Item = Option<AckId>>) {
    ack_ids.into_iter().for_each(|ack_id| requests.push(Request { message: join(ack_id), bytes: 1 }));
}

/// A judge that appends everything, under keys of its own.
fn append_all() -> impl FnMut(&Upstream, &BTreeSet<AckId>) -> Slot {
    let mut counter = 0;
    move |message, _| {
        counter += 1;
        let boot = BootKey { boot: BootId(1), shard: 0, counter, settled_below: 1 };
        let ack = message.ack_id().map(|ack_id| AckKey { ack_id, fingerprint: fingerprint(1) });
        let body = Body::Joined { connection_id: ConnectionId::new("c"), groups: vec![] };
        let record =
            Record { key: Key { boot, ack, request: None }, time: Time(0), sequence_ack: None, body };
        Slot::Append { record: Arc::new(record), outcome: Outcome::Pending }
    }
}

fn fingerprint(of: u8) -> Fingerprint {
    Fingerprint::of(&Upstream::JoinGroup { group: GroupName::new(&format!("g{of}")).unwrap(), ack_id: None })
}

fn settled(requests: &mut Requests) -> Vec<String> {
    let settled = std::iter::from_fn(|| requests.settle_next(&AckWindow::new(9)));
    settled.map(|settled| short(settled.answer.as_ref())).collect()
}

fn short(answer: Option<&Downstream>) -> String {
    match answer {
        Some(Downstream::Ack { ack_id, error: None }) => format!("ack {ack_id}"),
        Some(Downstream::Ack { ack_id, error: Some(error) }) => {
            format!("ack {ack_id} {}", error.name.as_str())
        }
        Some(Downstream::Pong) => "pong".to_owned(),
        other => format!("{other:?}"),
    }
}
