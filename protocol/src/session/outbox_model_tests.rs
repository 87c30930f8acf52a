//! The outbox equals a naive list: one of everything ever delivered, and one of what a socket has still to send.

use bytes::BytesMut;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::Index;

use super::super::testing::text;
use super::*;
use crate::log::{MessageRef, Time};
use crate::wire::ConnectionId;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn an_outbox_equals_a_naive_list(
        is_reliable in prop::bool::weighted(0.8),
        steps in vec(step(), 1..120),
    ) {
        let mut world = World::new(is_reliable);
        for step in steps {
            world.take(step);
            world.check();
        }
        world.settle();
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// So many messages of so many bytes; with a time-to-live in milliseconds or without.
    Deliver(usize, usize, Option<u64>),
    Reply,
    Ping,
    SequenceAck(Acked),
    /// Pulls at most about so much.
    Transmit(usize),
    /// The socket has taken this part of what was pulled last; the rest is taken back, or written later.
    Write(Index, bool),
    Attach,
    Detach,
    /// The clock moves, backwards too.
    Clock(i64),
    /// A socket of the past says something.
    Stale(Index),
}

#[derive(Debug, Clone)]
enum Acked {
    Nothing,
    Given(Index),
    Future,
}

fn step() -> impl Strategy<Value = Step> {
    let acked = prop_oneof![
        1 => Just(Acked::Nothing),
        6 => any::<Index>().prop_map(Acked::Given),
        1 => Just(Acked::Future),
    ];
    prop_oneof![
        6 => (1usize..4, 0usize..300, option::weighted(0.3, 0u64..50))
            .prop_map(|(messages, bytes, ttl_ms)| Step::Deliver(messages, bytes, ttl_ms)),
        1 => (50usize..200).prop_map(|messages| Step::Deliver(messages, 1, None)),
        3 => Just(Step::Reply),
        2 => Just(Step::Ping),
        3 => acked.prop_map(Step::SequenceAck),
        8 => (1usize..2_000).prop_map(Step::Transmit),
        8 => (any::<Index>(), any::<bool>()).prop_map(|(part, is_rewound)| Step::Write(part, is_rewound)),
        2 => Just(Step::Attach),
        1 => Just(Step::Detach),
        2 => (-20i64..40).prop_map(Step::Clock),
        1 => any::<Index>().prop_map(Step::Stale),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Item {
    Connected,
    Pong,
    Ack(u64),
    /// Index among all deliveries.
    Delivery(usize),
}

struct Delivery {
    id: SequenceId,
    payload: String,
    expires_at: Option<Time>,
    is_kept: bool,
}

struct World {
    outbox: Outbox,
    is_reliable: bool,
    now: Time,
    deliveries: Vec<Delivery>,
    /// Payload sizes since the last jump of the ids.
    since_jump: Vec<usize>,
    acks: u64,
    epochs: Vec<AttachEpoch>,
    is_attached: bool,
    /// What the socket has still to send, pongs apart.
    queue: VecDeque<Item>,
    pongs: usize,
    /// What was pulled last and may still be taken back.
    pulled: Option<(Vec<SentItem>, Vec<Item>)>,
    /// Written to a client that is not reliable: gone as soon as the next pull tells so.
    written: Vec<usize>,
    /// Whether the next thing to send wakes the writer.
    is_waiting: bool,
}

impl World {
    fn new(is_reliable: bool) -> Self {
        let subprotocol = if is_reliable { Subprotocol::JsonReliable } else { Subprotocol::Json };
        let mut world = Self {
            outbox: super::tests::outbox(subprotocol),
            is_reliable,
            now: Time(1_000),
            deliveries: Vec::new(),
            since_jump: Vec::new(),
            acks: 0,
            epochs: Vec::new(),
            is_attached: false,
            queue: VecDeque::new(),
            pongs: 0,
            pulled: None,
            written: Vec::new(),
            is_waiting: false,
        };
        world.attach();
        let connection_id = ConnectionId::new("c");
        let connected = Downstream::Connected { connection_id, user_id: None, reconnection_token: None };
        let _ = world.outbox.reply(connected);
        world.queue.push_back(Item::Connected);
        world
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Deliver(messages, bytes, ttl_ms) => {
                (0..messages).for_each(|_| self.deliver(bytes, ttl_ms));
            }
            Step::Reply => {
                self.acks += 1;
                let woken = self.outbox.reply(Downstream::Ack { ack_id: self.acks, error: None });
                if self.is_attached {
                    self.queue.push_back(Item::Ack(self.acks));
                }
                self.check_wake(woken);
            }
            Step::Ping => {
                let woken = self.outbox.pong(self.epoch());
                self.pongs += usize::from(self.is_attached);
                self.check_wake(woken);
            }
            Step::SequenceAck(acked) => self.sequence_ack(&acked),
            Step::Transmit(budget_bytes) => self.transmit(budget_bytes),
            Step::Write(part, is_rewound) => self.write(part, is_rewound),
            // Only a reliable session has a second socket.
            Step::Attach if self.is_reliable => self.attach(),
            Step::Detach if self.is_reliable => {
                assert_eq!(self.outbox.detach(self.epoch()), self.is_attached);
                self.let_go();
            }
            Step::Attach | Step::Detach => {}
            Step::Clock(ms) => self.now = Time(self.now.0.saturating_add_signed(ms)),
            Step::Stale(which) => self.stale(which),
        }
    }

    fn check(&self) {
        let kept = self.deliveries.iter().filter(|delivery| delivery.is_kept);
        let content_bytes: usize = kept.clone().map(|delivery| delivery.payload.len()).sum();
        assert_eq!(self.outbox.content_bytes(), content_bytes);
        assert!(self.outbox.messages() >= kept.count());
    }

    /// In the end the client gets all that it can still get, and nothing but that is kept.
    fn settle(&mut self) {
        if !self.is_attached {
            self.attach();
        }
        loop {
            if let Some((_, items)) = self.pulled.take() {
                self.note_written(&items);
            }
            self.transmit(10_000);
            if self.pulled.is_none() {
                break;
            }
        }
        assert!(self.queue.is_empty() && self.pongs == 0);
        self.sequence_ack(&Acked::Future);
        self.check();
        assert_eq!(self.outbox.messages(), 0);
    }

    fn epoch(&self) -> AttachEpoch {
        self.epochs.last().copied().unwrap_or(AttachEpoch(0))
    }

    fn deliver(&mut self, bytes: usize, ttl_ms: Option<u64>) {
        let payload = "x".repeat(bytes);
        let expires_at = ttl_ms.map(|ms| self.now.plus_ms(ms));
        let budget = Arc::new(MemoryBudget::new(usize::MAX));
        let woken = self.outbox.deliver(&SharedMessage::new(
            MessageRef::default(),
            text(&payload),
            expires_at,
            &budget,
        ));
        let last = self.deliveries.last().map_or(0, |delivery| delivery.id);
        let is_jump =
            self.since_jump.len() == 128 || self.since_jump.iter().sum::<usize>() >= 4 * 1024 * 1024;
        if is_jump {
            self.since_jump.clear();
        }
        self.since_jump.push(bytes);
        let id = last + if is_jump { 301 } else { 1 };
        if self.is_attached {
            self.queue.push_back(Item::Delivery(self.deliveries.len()));
        }
        self.deliveries.push(Delivery { id, payload, expires_at, is_kept: true });
        self.check_wake(woken);
    }

    fn sequence_ack(&mut self, acked: &Acked) {
        let id = match acked {
            Acked::Nothing => 0,
            Acked::Given(_) if self.deliveries.is_empty() => 0,
            Acked::Given(which) => which.get(&self.deliveries).id,
            Acked::Future => u64::MAX,
        };
        self.outbox.sequence_ack(self.epoch(), id);
        if self.is_attached && self.is_reliable {
            for delivery in self.deliveries.iter_mut().take_while(|delivery| delivery.id <= id) {
                delivery.is_kept = false;
            }
        }
    }

    fn transmit(&mut self, budget_bytes: usize) {
        if self.pulled.is_some() {
            return;
        }
        let (mut out, mut sent) = (BytesMut::new(), Vec::new());
        let epoch = self.epoch();
        let progress =
            self.outbox.transmit(epoch, self.now, budget_bytes, &mut out, &mut sent, Waker::noop());
        if !self.is_attached {
            assert_eq!((progress, out.len()), (Progress::Cut, 0));
            return;
        }
        for index in self.written.drain(..) {
            self.deliveries[index].is_kept = false;
        }
        let mut items = Vec::new();
        let mut start = 0;
        for item in &sent {
            assert!(start < budget_bytes, "it stops at the budget");
            items.push(self.take_frame(&out[start..item.end]));
            start = item.end;
        }
        assert_eq!(start, out.len());
        if start < budget_bytes {
            while let Some(item) = self.queue.pop_front() {
                assert!(self.is_skipped(item), "{item:?} was left out");
            }
            assert_eq!(self.pongs, 0);
        }
        let is_all = self.queue.is_empty() && self.pongs == 0;
        let is_last =
            self.is_reliable && is_all && items.iter().all(|item| matches!(item, Item::Delivery(_)));
        let expected = match (items.is_empty(), is_last) {
            (true, _) => Progress::Idle,
            (false, true) => Progress::LastFrames,
            (false, false) => Progress::Frames,
        };
        // Once the budget is used up the outbox does not look whether all that follows has expired.
        let may_ask_for_one_call_more = start >= budget_bytes && expected == Progress::LastFrames;
        if !(may_ask_for_one_call_more && progress == Progress::Frames) {
            assert_eq!(progress, expected);
        }
        self.is_waiting |= progress != Progress::Frames;
        if progress != Progress::Frames {
            let kept = self.deliveries.iter().position(|delivery| delivery.is_kept);
            assert_eq!(self.outbox.messages(), kept.map_or(0, |first| self.deliveries.len() - first));
        }
        self.pulled = Some((sent, items)).filter(|(_, items)| !items.is_empty());
    }

    /// The naive list's next item, which the frame must be.
    fn take_frame(&mut self, frame: &[u8]) -> Item {
        if frame == frame_of(r#"{"type":"pong"}"#) {
            assert!(self.pongs > 0 && self.queue.front() != Some(&Item::Connected));
            self.pongs -= 1;
            return Item::Pong;
        }
        loop {
            let item = self.queue.pop_front().expect("a frame that nothing stands for");
            if self.is_skipped(item) {
                continue;
            }
            let expected = match item {
                Item::Connected => {
                    r#"{"type":"system","event":"connected","userId":null,"connectionId":"c"}"#.to_owned()
                }
                Item::Ack(ack_id) => format!(r#"{{"type":"ack","ackId":{ack_id},"success":true}}"#),
                Item::Delivery(index) => self.message(index),
                Item::Pong => unreachable!(),
            };
            assert_eq!(frame, frame_of(&expected), "instead of {expected}");
            return item;
        }
    }

    fn message(&self, index: usize) -> String {
        let Delivery { id, payload, .. } = &self.deliveries[index];
        let id = if self.is_reliable { format!(r#""sequenceId":{id},"#) } else { String::new() };
        format!(r#"{{{id}"type":"message","from":"group","group":"g","dataType":"text","data":"{payload}"}}"#)
    }

    /// Whether the client does not need it any more.
    fn is_skipped(&mut self, item: Item) -> bool {
        let Item::Delivery(index) = item else { return false };
        let now = self.now;
        let delivery = &mut self.deliveries[index];
        if self.is_reliable && delivery.expires_at.is_some_and(|at| now >= at) {
            delivery.is_kept = false;
        }
        !delivery.is_kept
    }

    fn write(&mut self, part: Index, is_rewound: bool) {
        let Some((sent, items)) = self.pulled.take() else { return };
        let written_bytes = part.index(sent.last().map_or(0, |item| item.end) + 1);
        let starts = std::iter::once(0).chain(sent.iter().map(|item| item.end));
        let begun = starts.take(sent.len()).take_while(|start| *start < written_bytes).count();
        if is_rewound {
            self.outbox.rewind(self.epoch(), &sent[begun..]);
            for item in items[begun..].iter().rev() {
                match item {
                    Item::Pong => self.pongs += 1,
                    item => self.queue.push_front(*item),
                }
            }
        }
        let written = if is_rewound { begun } else { items.len() };
        self.note_written(&items[..written]);
    }

    fn note_written(&mut self, items: &[Item]) {
        if !self.is_reliable {
            self.written.extend(items.iter().filter_map(|item| match item {
                Item::Delivery(index) => Some(*index),
                _ => None,
            }));
        }
    }

    fn attach(&mut self) {
        self.let_go();
        self.epochs.push(self.outbox.attach());
        self.is_attached = true;
        let kept = self.deliveries.iter().enumerate().filter(|(_, delivery)| delivery.is_kept);
        self.queue = kept.map(|(index, _)| Item::Delivery(index)).collect();
    }

    fn let_go(&mut self) {
        self.is_attached = false;
        self.queue.clear();
        self.pongs = 0;
        self.pulled = None;
        self.is_waiting = false;
    }

    fn stale(&mut self, which: Index) {
        let past = self.epochs.len() - usize::from(self.is_attached);
        if past == 0 {
            return;
        }
        let epoch = self.epochs[which.index(past)];
        self.outbox.sequence_ack(epoch, u64::MAX);
        assert!(self.outbox.pong(epoch).is_none() && !self.outbox.detach(epoch));
        assert!(self.outbox.is_write_over(epoch, Waker::noop()));
        let (mut out, mut sent) = (BytesMut::new(), Vec::new());
        let progress = self.outbox.transmit(epoch, self.now, 100, &mut out, &mut sent, Waker::noop());
        assert_eq!((progress, out.len()), (Progress::Cut, 0));
        self.outbox.rewind(epoch, &[SentItem { end: 9, item: super::transmitting::Item::Delivery(0) }]);
    }

    /// A writer that waits is woken by the first thing to write, and by it alone.
    fn check_wake(&mut self, woken: Option<Waker>) {
        assert_eq!(woken.is_some(), self.is_waiting && self.is_attached);
        self.is_waiting = false;
    }
}

fn frame_of(text: &str) -> Vec<u8> {
    let mut frame = vec![0x81];
    match u8::try_from(text.len()) {
        Ok(short) if short < 126 => frame.push(short),
        _ => {
            frame.push(126);
            frame.extend_from_slice(&u16::try_from(text.len()).unwrap().to_be_bytes());
        }
    }
    frame.extend_from_slice(text.as_bytes());
    frame
}
