//! What clients have acknowledged does not come back with a restart of the program, be it killed or stopped.

use serde_json::{Value, json};

use crate::crashes::Crashing;
use crate::support::*;

/// What an outbox of these tests holds.
const BOUND: u64 = 20;
/// Messages between two sequence acks. More than a quarter of the bound, so that the mark of each ack does not wait.
const BETWEEN_ACKS: u64 = 8;

/// A gateway whose outboxes hold little.
async fn bounded() -> (Crashing, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("oncewire.toml");
    std::fs::write(&file, format!("outbox_messages_max = {BOUND}\n")).unwrap();
    (Crashing::with(&["--config", file.to_str().unwrap()]).await, directory)
}

/// A subscriber, a publisher and what has been published so far.
struct Pair {
    subscriber: Socket,
    publisher: Socket,
    to_subscriber: Identity,
    to_publisher: Identity,
    published: u64,
}

impl Pair {
    async fn open(crashing: &Crashing) -> Self {
        let (subscriber, publisher) = crashing.pair().await;
        let (to_subscriber, to_publisher) = (subscriber.identity(), publisher.identity());
        Self { subscriber, publisher, to_subscriber, to_publisher, published: 0 }
    }

    /// Publishes so many, each of which arrives.
    async fn passes_on(&mut self, messages: u64) {
        for _ in 0..messages {
            self.published += 1;
            self.publisher.done(publish("g", self.published, &self.published.to_string())).await;
            let arrived = self.subscriber.read().await;
            assert_eq!(arrived, numbered(self.published));
        }
    }

    /// The subscriber acknowledges everything, and the gateway has it.
    async fn acknowledges(&mut self) {
        self.subscriber.send(sequence_ack(self.published)).await;
        self.subscriber.send(json!({"type": "ping"})).await;
        self.subscriber.expect(json!({"type": "pong"})).await;
    }

    /// Many times the bound, each part of it acknowledged.
    async fn passes_on_more_than_the_bound(&mut self) {
        for _ in 0..3 * BOUND / BETWEEN_ACKS {
            self.passes_on(BETWEEN_ACKS).await;
            self.acknowledges().await;
        }
    }

    async fn comes_back(&mut self, crashing: &Crashing) {
        self.subscriber = crashing.resume(&self.to_subscriber).await;
        self.publisher = crashing.resume(&self.to_publisher).await;
    }

    /// The program ends and starts as an operator has it do.
    async fn across_a_stop(self, crashing: &mut Crashing) -> Self {
        let Self { subscriber, publisher, to_subscriber, to_publisher, published } = self;
        let (stopped, (), ()) = tokio::join!(
            crashing.gateway.stop(),
            subscriber.expect_close(1001),
            publisher.expect_close(1001)
        );
        stopped.unwrap();
        crashing.gateway.restart().await.unwrap();
        let subscriber = crashing.resume(&to_subscriber).await;
        let publisher = crashing.resume(&to_publisher).await;
        Self { subscriber, publisher, to_subscriber, to_publisher, published }
    }
}

/// The message with this number. While ids do not jump, it is the sequence id, too.
fn numbered(number: u64) -> Value {
    assert!(number < 128);
    message(number, "g", "p", &number.to_string())
}

#[tokio::test]
async fn a_session_that_acknowledged_five_messages_gets_them_again_after_sigterm() {
    let mut crashing = Crashing::start().await;
    let mut pair = Pair::open(&crashing).await;
    for _ in 0..3 {
        pair.passes_on(5).await;
        pair.acknowledges().await;
        pair = pair.across_a_stop(&mut crashing).await;
        pair.subscriber.expect_quiet().await;
    }
    pair.passes_on(1).await;
}

/// The `websocket-client` package of Python, under the official SDK, answers every close with 1000.
#[tokio::test]
async fn a_client_that_answers_the_close_of_a_stop_with_1000_gets_its_session_back() {
    let mut crashing = Crashing::start().await;
    let Pair { mut subscriber, publisher, to_subscriber, .. } = Pair::open(&crashing).await;
    let answer = async {
        subscriber.expect_close_frame_unanswered(1001).await;
        subscriber.answer_close(1000).await;
    };
    let (stopped, (), ()) = tokio::join!(crashing.gateway.stop(), answer, publisher.expect_close(1001));
    stopped.unwrap();
    crashing.gateway.restart().await.unwrap();
    crashing.resume(&to_subscriber).await;
}

#[tokio::test]
async fn a_session_that_received_more_than_its_bound_and_acknowledged_it_is_refused_after_kill_9() {
    let (mut crashing, _directory) = bounded().await;
    let mut pair = Pair::open(&crashing).await;
    for _ in 0..2 {
        pair.passes_on_more_than_the_bound().await;
        let published = pair.published;
        crashing.crash().await;
        pair.comes_back(&crashing).await;
        // The last marks may not have been in the log yet.
        let again = pair.subscriber.settle().await;
        let all: Vec<_> = (1..=published).map(numbered).collect();
        assert!(all.ends_with(&again) && again.len() as u64 <= BOUND, "{again:?}");
    }
    pair.passes_on(1).await;
}

#[tokio::test]
async fn a_session_that_received_more_than_its_bound_and_acknowledged_it_is_refused_after_sigterm() {
    let (mut crashing, _directory) = bounded().await;
    let mut pair = Pair::open(&crashing).await;
    for _ in 0..2 {
        pair.passes_on_more_than_the_bound().await;
        pair.passes_on(2).await;
        let published = pair.published;
        pair = pair.across_a_stop(&mut crashing).await;
        let again = pair.subscriber.settle().await;
        assert_eq!(again, [numbered(published - 1), numbered(published)], "what was not acknowledged");
        pair.acknowledges().await;
    }
}
