//! One publish to many: every publisher sends a burst, every subscriber gets all of it, then comes the next burst.
//!
//! Knows that each subscriber must get each publish exactly once and in its publisher's order, and fails when not.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::clients::{Clients, STALL};
use super::{Measurement, Meter, Subject, Window};
use crate::endpoint::Purpose;
use crate::frame::{self, Opcode};
use crate::message::{self, Downstream, RELIABLE_JSON, Stamp};

/// How long after the last burst a repeated delivery would still be noticed.
const AFTERMATH: Duration = Duration::from_millis(100);

/// The load.
#[derive(Clone, Copy, Debug)]
pub struct FanoutPlan {
    pub subscribers: usize,
    pub publishers: u16,
    /// Publishes that each publisher sends at once.
    pub burst: u32,
    pub payload_bytes: usize,
    pub window: Window,
}

/// Applies the load to `subject` and counts deliveries.
///
/// # Errors
/// The server refuses, closes, stalls, or delivers anything but each publish once and in order.
pub fn run(subject: &Subject, plan: &FanoutPlan) -> Result<Measurement> {
    let mut clients = Clients::new()?;
    for (purpose, count) in
        [(Purpose::Subscribe, plan.subscribers), (Purpose::Publish, usize::from(plan.publishers))]
    {
        let target = subject.endpoint.client_target(purpose)?;
        clients.open_all(count, &subject.endpoint, &target, RELIABLE_JSON)?;
    }

    let mut ledger = Ledger::new(plan);
    let mut acks = SequenceAcks::new(plan.subscribers);
    let mut meter = Meter::new(subject, plan.window);
    let measurement = loop {
        publish_burst(&clients, &mut ledger, plan)?;
        let sent_at = Instant::now();
        while !ledger.is_settled() {
            clients.turn(Duration::from_millis(100), |key, message| ledger.take(key, message))?;
            acks.send_due(&clients, &ledger)?;
            ensure!(
                sent_at.elapsed() < STALL,
                "{} deliveries or acks of a burst are missing",
                ledger.missing
            );
        }
        if let Some(measurement) = meter.observe(ledger.deliveries)? {
            break measurement;
        }
    };
    let settled_at = Instant::now();
    while settled_at.elapsed() < AFTERMATH {
        clients.turn(AFTERMATH, |key, message| ledger.take(key, message))?;
    }
    Ok(measurement)
}

fn publish_burst(clients: &Clients, ledger: &mut Ledger, plan: &FanoutPlan) -> Result<()> {
    let (mut text, mut frames) = (Vec::new(), Vec::new());
    for publisher in 0..plan.publishers {
        frames.clear();
        for _ in 0..plan.burst {
            let number = ledger.publish(publisher);
            message::write_publish(number + 1, Stamp { publisher, number }, plan.payload_bytes, &mut text);
            frame::push_client_frame(Opcode::Text, &text, &mut frames);
        }
        clients.send(plan.subscribers + usize::from(publisher), &frames)?;
    }
    Ok(())
}

/// What was published, delivered and acknowledged. Subscribers have the keys from 0, publishers those after them.
struct Ledger {
    subscribers: usize,
    publishers: usize,
    /// Publishes so far, by publisher. The ack id of a publish is its number plus one.
    published: Vec<u64>,
    /// Publishes acknowledged, by publisher.
    acknowledged: Vec<u64>,
    /// Publishes delivered, by subscriber and publisher.
    delivered: Vec<u64>,
    /// Largest sequence id, by subscriber.
    sequence_ids: Vec<u64>,
    deliveries: u64,
    /// Deliveries and acks still to come.
    missing: u64,
}

impl Ledger {
    fn new(plan: &FanoutPlan) -> Self {
        let publishers = usize::from(plan.publishers);
        Self {
            subscribers: plan.subscribers,
            publishers,
            published: vec![0; publishers],
            acknowledged: vec![0; publishers],
            delivered: vec![0; plan.subscribers * publishers],
            sequence_ids: vec![0; plan.subscribers],
            deliveries: 0,
            missing: 0,
        }
    }

    /// Counts one more publish and returns its number.
    fn publish(&mut self, publisher: u16) -> u64 {
        let published = &mut self.published[usize::from(publisher)];
        *published += 1;
        self.missing += self.subscribers as u64 + 1;
        *published - 1
    }

    fn is_settled(&self) -> bool {
        self.missing == 0
    }

    fn take(&mut self, key: usize, message: Downstream) -> Result<()> {
        match message {
            Downstream::Delivery { sequence_id, stamp } => self.deliver(key, sequence_id, stamp),
            Downstream::Ack { ack_id } => self.acknowledge(key, ack_id),
            Downstream::Connected => bail!("client {key} was connected again"),
            Downstream::Other => Ok(()),
        }
    }

    fn deliver(&mut self, key: usize, sequence_id: u64, stamp: Stamp) -> Result<()> {
        let publisher = usize::from(stamp.publisher);
        ensure!(key < self.subscribers, "client {key} got a delivery, but is in no group");
        ensure!(publisher < self.publishers, "client {key} got a delivery of an unknown publisher");
        let largest = &mut self.sequence_ids[key];
        ensure!(sequence_id > *largest, "client {key} got sequence id {sequence_id} after {largest}");
        *largest = sequence_id;
        let delivered = &mut self.delivered[key * self.publishers + publisher];
        ensure!(
            stamp.number == *delivered && *delivered < self.published[publisher],
            "client {key} got publish {} instead of {delivered}",
            stamp.number
        );
        *delivered += 1;
        self.deliveries += 1;
        self.missing -= 1;
        Ok(())
    }

    fn acknowledge(&mut self, key: usize, ack_id: u64) -> Result<()> {
        let publisher = key.checked_sub(self.subscribers).filter(|publisher| *publisher < self.publishers);
        let Some(publisher) = publisher else { bail!("client {key} got an ack, but sent nothing") };
        let acknowledged = &mut self.acknowledged[publisher];
        ensure!(
            ack_id == *acknowledged + 1 && *acknowledged < self.published[publisher],
            "client {key} got ack {ack_id} instead of {}",
            *acknowledged + 1
        );
        *acknowledged += 1;
        self.missing -= 1;
        Ok(())
    }
}

/// The subscribers' sequence acks: one a second from each, like the official clients, evenly spread over the second.
struct SequenceAcks {
    began: Instant,
    subscribers: usize,
    /// Turns taken so far; subscriber `turns % subscribers` is next.
    turns: usize,
    /// Largest id acknowledged, by subscriber.
    acknowledged: Vec<u64>,
}

impl SequenceAcks {
    fn new(subscribers: usize) -> Self {
        Self { began: Instant::now(), subscribers, turns: 0, acknowledged: vec![0; subscribers] }
    }

    fn send_due(&mut self, clients: &Clients, ledger: &Ledger) -> Result<()> {
        let due = (self.began.elapsed().as_secs_f64() * self.subscribers as f64) as usize;
        // After a pause of several seconds each subscriber still sends one ack only.
        self.turns = self.turns.max(due.saturating_sub(self.subscribers));
        while self.turns < due {
            let subscriber = self.turns % self.subscribers;
            self.turns += 1;
            let largest = ledger.sequence_ids[subscriber];
            if largest > self.acknowledged[subscriber] {
                self.acknowledged[subscriber] = largest;
                let mut frame = Vec::new();
                let text = message::sequence_ack(largest);
                frame::push_client_frame(Opcode::Text, text.as_bytes(), &mut frame);
                clients.send(subscriber, &frame)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> Ledger {
        let window = Window { warmup: Duration::ZERO, measured: Duration::ZERO };
        Ledger::new(&FanoutPlan { subscribers: 2, publishers: 2, burst: 1, payload_bytes: 128, window })
    }

    fn stamp(publisher: u16, number: u64) -> Stamp {
        Stamp { publisher, number }
    }

    #[test]
    fn is_settled_when_every_delivery_and_ack_has_come() {
        let mut ledger = ledger();
        assert_eq!((ledger.publish(0), ledger.publish(0), ledger.publish(1)), (0, 1, 0));
        for key in 0..2 {
            ledger.deliver(key, 1, stamp(0, 0)).unwrap();
            ledger.deliver(key, 2, stamp(1, 0)).unwrap();
            ledger.deliver(key, 303, stamp(0, 1)).unwrap();
        }
        for (key, ack_id) in [(2, 1), (2, 2), (3, 1)] {
            assert!(!ledger.is_settled());
            ledger.acknowledge(key, ack_id).unwrap();
        }
        assert!(ledger.is_settled());
        assert_eq!(ledger.deliveries, 6);
    }

    #[test]
    fn refuses_a_repeated_lost_or_stray_delivery() {
        let mut ledger = ledger();
        ledger.publish(0);
        ledger.publish(0);
        ledger.deliver(0, 5, stamp(0, 0)).unwrap();
        assert!(ledger.deliver(0, 6, stamp(0, 0)).is_err(), "repeated under another id");
        assert!(ledger.deliver(0, 5, stamp(0, 1)).is_err(), "id repeated");
        assert!(ledger.deliver(1, 1, stamp(0, 1)).is_err(), "the first was lost");
        assert!(ledger.deliver(1, 2, stamp(1, 0)).is_err(), "never published");
        assert!(ledger.deliver(1, 3, stamp(2, 0)).is_err(), "no such publisher");
        assert!(ledger.deliver(2, 1, stamp(0, 0)).is_err(), "to a publisher");
    }

    #[test]
    fn refuses_a_repeated_early_or_stray_ack() {
        let mut ledger = ledger();
        ledger.publish(0);
        assert!(ledger.acknowledge(2, 2).is_err());
        assert!(ledger.acknowledge(3, 1).is_err());
        assert!(ledger.acknowledge(0, 1).is_err());
        assert!(ledger.acknowledge(4, 1).is_err());
        ledger.acknowledge(2, 1).unwrap();
        assert!(ledger.acknowledge(2, 1).is_err());
    }
}
