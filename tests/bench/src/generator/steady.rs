//! A steady load: one publisher that sends so many publishes a second, however long their acks take.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};

use super::clients::{Clients, STALL};
use crate::endpoint::{Endpoint, Purpose};
use crate::frame::{self, Opcode};
use crate::message::{self, Downstream, RELIABLE_JSON, Stamp};

/// How often the publisher sends.
const TICK: Duration = Duration::from_millis(10);

/// The load.
#[derive(Clone, Copy, Debug)]
pub struct SteadyPlan {
    /// The hub; nobody is in its groups.
    pub hub: &'static str,
    /// Publishes a second; in multiples of 100.
    pub rate: u32,
    pub payload_bytes: usize,
}

/// A load that goes on until it is stopped, on a thread of its own.
pub struct SteadyLoad {
    acknowledged: Arc<AtomicU64>,
    waits: Arc<Mutex<Waits>>,
    is_stopped: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

/// How long publishes wait for their acks.
#[derive(Default)]
struct Waits {
    /// When each publish was sent whose ack has not come, in order.
    pending: VecDeque<Instant>,
    /// Of those whose ack came since this was taken last.
    times: Vec<Duration>,
}

impl Waits {
    fn sent(&mut self, at: Instant) {
        self.pending.push_back(at);
    }

    fn acknowledged(&mut self, now: Instant) {
        let sent_at = self.pending.pop_front();
        self.times.extend(sent_at.map(|at| now.saturating_duration_since(at)));
    }

    fn take(&mut self, now: Instant) -> Vec<Duration> {
        let mut times = std::mem::take(&mut self.times);
        times.extend(self.pending.iter().map(|at| now.saturating_duration_since(*at)));
        times
    }
}

impl SteadyLoad {
    /// Begins it, on the cores of the calling thread.
    ///
    /// # Errors
    /// The clock stands before 1970.
    pub fn begin(endpoint: &Endpoint, plan: SteadyPlan) -> Result<Self> {
        let target = endpoint.client_target_in(plan.hub, Purpose::Publish, None)?;
        let acknowledged = Arc::new(AtomicU64::new(0));
        let is_stopped = Arc::new(AtomicBool::new(false));
        let waits: Arc<Mutex<Waits>> = Arc::default();
        let (endpoint, counter, flag, noted) =
            (endpoint.clone(), Arc::clone(&acknowledged), Arc::clone(&is_stopped), Arc::clone(&waits));
        let thread = thread::spawn(move || {
            let mut clients = Clients::new()?;
            clients.open_all(1, &endpoint, &target, RELIABLE_JSON)?;
            publish(&mut clients, plan, &counter, &noted, &flag)
        });
        Ok(Self { acknowledged, waits, is_stopped, thread })
    }

    /// Publishes that were acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// How long each publish waited whose ack came since this was asked last, and how long those have waited by now that
    /// have none: what never comes is in the figures too.
    pub fn take_waits(&self) -> Vec<Duration> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now())
    }

    /// Ends it.
    ///
    /// # Errors
    /// It had failed.
    pub fn stop(self) -> Result<()> {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the steady load panicked"))?
    }
}

fn publish(
    clients: &mut Clients,
    plan: SteadyPlan,
    acknowledged: &AtomicU64,
    waits: &Mutex<Waits>,
    is_stopped: &AtomicBool,
) -> Result<()> {
    let (mut text, mut frames, mut number) = (Vec::new(), Vec::new(), 0);
    let mut due = Instant::now();
    let mut progress = due;
    while !is_stopped.load(Ordering::Relaxed) {
        frames.clear();
        // A timer may be a little late, and the server has no part in it. Whole ticks are lost where the server did not take
        // what was sent before, and count as waiting.
        let now = Instant::now();
        let from = if now.saturating_duration_since(due) > TICK { due } else { now };
        for _ in 0..plan.rate / 100 {
            let stamp = Stamp { publisher: 0, number };
            message::write_publish(number + 1, stamp, plan.payload_bytes, &mut text);
            frame::push_client_frame(Opcode::Text, &text, &mut frames);
            number += 1;
            waits.lock().unwrap_or_else(PoisonError::into_inner).sent(from);
        }
        clients.send(0, &frames)?;
        due += TICK;
        loop {
            clients.turn(due.saturating_duration_since(Instant::now()), |_, message| {
                let Downstream::Ack { ack_id } = message else { bail!("the publisher got {message:?}") };
                let before = acknowledged.swap(ack_id, Ordering::Relaxed);
                ensure!(ack_id == before + 1, "ack {ack_id} after {before}");
                progress = Instant::now();
                waits.lock().unwrap_or_else(PoisonError::into_inner).acknowledged(progress);
                Ok(())
            })?;
            if Instant::now() >= due {
                break;
            }
        }
        ensure!(progress.elapsed() < STALL, "no publish was acknowledged for {STALL:?}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_publish_that_is_never_acknowledged_is_among_the_waits() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut waits = Waits::default();
        waits.sent(at(0));
        waits.sent(at(10));
        waits.acknowledged(at(3));
        assert_eq!(waits.take(at(500)), [3, 490].map(Duration::from_millis));
        waits.acknowledged(at(510));
        assert_eq!(waits.take(at(520)), [Duration::from_millis(500)]);
        assert!(waits.take(at(530)).is_empty());
    }
}
