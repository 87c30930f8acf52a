//! A reconnect storm: clients connect with a token, wait for `connected`, vanish, and others take their place.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::clients::{Clients, STALL};
use super::{Measurement, Meter, Subject, Window};
use crate::endpoint::Purpose;
use crate::message::{Downstream, JSON};

/// Runs `in_flight` handshakes at a time against `subject` and counts those that succeeded. The sessions end with
/// their sockets, so that they do not pile up.
///
/// # Errors
/// A handshake fails, or none succeeds for [`STALL`].
pub fn run(subject: &Subject, in_flight: usize, window: Window) -> Result<Measurement> {
    let mut clients = Clients::new()?;
    let target = subject.endpoint.client_target(Purpose::Publish)?;
    let mut meter = Meter::new(subject, window);
    let mut progress = Instant::now();
    let mut connected = Vec::new();
    let (mut under_way, mut operations) = (0, 0);
    loop {
        while under_way < in_flight {
            clients.open(&subject.endpoint, &target, JSON)?;
            under_way += 1;
        }
        clients.turn(Duration::from_millis(100), |key, message| {
            if message == Downstream::Connected {
                connected.push(key);
            }
            Ok(())
        })?;
        if !connected.is_empty() {
            progress = Instant::now();
        }
        under_way -= connected.len();
        operations += connected.len() as u64;
        for key in connected.drain(..) {
            clients.reset(key)?;
        }
        ensure!(progress.elapsed() < STALL, "no handshake succeeded for {STALL:?}");
        if let Some(measurement) = meter.observe(operations)? {
            return Ok(measurement);
        }
    }
}
