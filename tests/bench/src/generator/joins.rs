//! A client in many groups that joins one more and leaves it again.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::clients::{Clients, STALL};
use super::{Measurement, Meter, Subject, Window};
use crate::frame::{self, Opcode};
use crate::message::{self, Downstream, RELIABLE_JSON};

/// Joins that the client has under way while it joins the groups that it stays in.
const JOINS_AT_ONCE: u64 = 256;

/// The load.
#[derive(Clone, Copy, Debug)]
pub struct JoinsPlan {
    /// Groups that the client is in, with the one that it joins and leaves; at least 1.
    pub groups: u32,
    /// Pairs of a join and a leave that are sent at once.
    pub burst: u32,
    pub window: Window,
}

/// Applies the load to `subject` and counts pairs of a join and a leave.
///
/// # Errors
/// The server refuses or stalls.
pub fn run(subject: &Subject, plan: &JoinsPlan) -> Result<Measurement> {
    let endpoint = &subject.endpoint;
    let target = endpoint.target_with(&["webpubsub.joinLeaveGroup"], &[])?;
    let mut client = Client { clients: Clients::new()?, sent: 0, acknowledged: 0, frames: Vec::new() };
    client.clients.open_all(1, endpoint, &target, RELIABLE_JSON)?;
    for n in 0..u64::from(plan.groups.saturating_sub(1)) {
        client.request("joinGroup", &format!("room-{n}"));
        if (n + 1) % JOINS_AT_ONCE == 0 {
            client.settle()?;
        }
    }
    client.settle()?;
    let mut meter = Meter::new(subject, plan.window);
    let mut pairs = 0;
    loop {
        for _ in 0..plan.burst {
            client.request("joinGroup", "one more");
            client.request("leaveGroup", "one more");
        }
        client.settle()?;
        pairs += u64::from(plan.burst);
        if let Some(measurement) = meter.observe(pairs)? {
            return Ok(measurement);
        }
    }
}

struct Client {
    clients: Clients,
    /// Requests; the ack ids count up with them.
    sent: u64,
    acknowledged: u64,
    /// Not sent yet.
    frames: Vec<u8>,
}

impl Client {
    fn request(&mut self, kind: &str, group: &str) {
        self.sent += 1;
        let text = message::membership(kind, group, self.sent);
        frame::push_client_frame(Opcode::Text, text.as_bytes(), &mut self.frames);
    }

    /// Sends what was asked for and waits until all of it is acknowledged.
    fn settle(&mut self) -> Result<()> {
        self.clients.send(0, &self.frames)?;
        self.frames.clear();
        let began = Instant::now();
        while self.acknowledged < self.sent {
            let acknowledged = &mut self.acknowledged;
            self.clients.turn(Duration::from_millis(100), |_, message| {
                let Downstream::Ack { ack_id } = message else { bail!("the client got {message:?}") };
                ensure!(ack_id == *acknowledged + 1, "ack {ack_id} after {acknowledged}");
                *acknowledged = ack_id;
                Ok(())
            })?;
            ensure!(
                began.elapsed() < STALL,
                "{} of {} requests are acknowledged",
                self.acknowledged,
                self.sent
            );
        }
        Ok(())
    }
}
