//! A steady load: one publisher that sends so many publishes a second, however long their acks take.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
    is_stopped: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
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
        let (endpoint, counter, flag) =
            (endpoint.clone(), Arc::clone(&acknowledged), Arc::clone(&is_stopped));
        let thread = thread::spawn(move || {
            let mut clients = Clients::new()?;
            clients.open_all(1, &endpoint, &target, RELIABLE_JSON)?;
            publish(&mut clients, plan, &counter, &flag)
        });
        Ok(Self { acknowledged, is_stopped, thread })
    }

    /// Publishes that were acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
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
    is_stopped: &AtomicBool,
) -> Result<()> {
    let (mut text, mut frames, mut number) = (Vec::new(), Vec::new(), 0);
    let mut due = Instant::now();
    let mut progress = due;
    while !is_stopped.load(Ordering::Relaxed) {
        frames.clear();
        for _ in 0..plan.rate / 100 {
            let stamp = Stamp { publisher: 0, number };
            message::write_publish(number + 1, stamp, plan.payload_bytes, &mut text);
            frame::push_client_frame(Opcode::Text, &text, &mut frames);
            number += 1;
        }
        clients.send(0, &frames)?;
        due += TICK;
        loop {
            clients.turn(due.saturating_duration_since(Instant::now()), |_, message| {
                let Downstream::Ack { ack_id } = message else { bail!("the publisher got {message:?}") };
                let before = acknowledged.swap(ack_id, Ordering::Relaxed);
                ensure!(ack_id == before + 1, "ack {ack_id} after {before}");
                progress = Instant::now();
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
