//! Many publishers to nobody: each sends a burst of publishes and the next one as soon as all are acknowledged.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::clients::{Clients, STALL};
use super::{Measurement, Meter, Subject, Window};
use crate::endpoint::Purpose;
use crate::frame::{self, Opcode};
use crate::message::{self, Downstream, RELIABLE_JSON, Stamp};

/// The load.
#[derive(Clone, Copy, Debug)]
pub struct InboundPlan {
    pub publishers: u16,
    /// Publishes that each publisher sends at once.
    pub burst: u32,
    pub payload_bytes: usize,
    pub window: Window,
}

/// Applies the load to `subject` and counts acknowledged publishes.
///
/// # Errors
/// The server refuses, closes, stalls, or acknowledges anything but each publish once and in order.
pub fn run(subject: &Subject, plan: &InboundPlan) -> Result<Measurement> {
    let mut clients = Clients::new()?;
    let target = subject.endpoint.client_target(Purpose::Publish)?;
    clients.open_all(usize::from(plan.publishers), &subject.endpoint, &target, RELIABLE_JSON)?;

    let mut acknowledged = vec![0_u64; usize::from(plan.publishers)];
    let mut idle: Vec<u16> = (0..plan.publishers).collect();
    let mut meter = Meter::new(subject, plan.window);
    let mut progress = Instant::now();
    let (mut text, mut frames) = (Vec::new(), Vec::new());
    let mut operations = 0;
    loop {
        for publisher in idle.drain(..) {
            frames.clear();
            let first = acknowledged[usize::from(publisher)];
            for number in first..first + u64::from(plan.burst) {
                let stamp = Stamp { publisher, number };
                message::write_publish(number + 1, stamp, plan.payload_bytes, &mut text);
                frame::push_client_frame(Opcode::Text, &text, &mut frames);
            }
            clients.send(usize::from(publisher), &frames)?;
        }
        let before = operations;
        clients.turn(Duration::from_millis(100), |key, message| {
            let Downstream::Ack { ack_id } = message else { bail!("client {key} got {message:?}") };
            let acknowledged = &mut acknowledged[key];
            ensure!(ack_id == *acknowledged + 1, "client {key} got ack {ack_id} after {acknowledged}");
            *acknowledged = ack_id;
            operations += 1;
            if ack_id % u64::from(plan.burst) == 0 {
                idle.push(u16::try_from(key)?);
            }
            Ok(())
        })?;
        if operations > before {
            progress = Instant::now();
        }
        ensure!(progress.elapsed() < STALL, "no publish was acknowledged for {STALL:?}");
        if let Some(measurement) = meter.observe(operations)? {
            return Ok(measurement);
        }
    }
}
