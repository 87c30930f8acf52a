//! The load generator: clients on one thread, and the loads they make.
//!
//! Knows the clients' side only. The server's CPU time is read from `/proc` at the moments between which work is
//! counted; which server it is, and what its figures are compared with, is the caller's business.

pub mod accept;
pub mod clients;
pub mod events;
pub mod fanout;
pub mod flood;
pub mod inbound;
pub mod joins;
pub mod requests;
pub mod steady;

use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;

use crate::endpoint::Endpoint;
use crate::procfs::CpuTime;

/// The server whose work is counted.
pub struct Subject {
    pub endpoint: Endpoint,
    pub pid: u32,
}

/// How long to run before counting begins, and how long to count.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub warmup: Duration,
    pub measured: Duration,
}

/// What a server did in a measured window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measurement {
    /// Deliveries, publishes, handshakes or requests.
    pub operations: u64,
    /// CPU time of all threads of the server.
    pub cpu_ns: u64,
    /// Time that passed. On a busy machine it says little about the server.
    pub wall_ns: u64,
}

impl Measurement {
    /// CPU time per operation, in nanoseconds.
    pub fn cpu_ns_per_operation(&self) -> f64 {
        self.cpu_ns as f64 / self.operations as f64
    }

    /// Operations that the server does in one second of CPU time.
    pub fn operations_per_cpu_second(&self) -> f64 {
        self.operations as f64 * 1e9 / self.cpu_ns as f64
    }

    /// Operations that the server did in one second that passed.
    pub fn operations_per_second(&self) -> f64 {
        self.operations as f64 * 1e9 / self.wall_ns as f64
    }
}

/// Runs through a [`Window`]: told of the work done so far, it takes both readings.
struct Meter<'a> {
    subject: &'a Subject,
    window: Window,
    began: Instant,
    start: Option<Reading>,
}

struct Reading {
    operations: u64,
    cpu: CpuTime,
    at: Instant,
}

impl<'a> Meter<'a> {
    fn new(subject: &'a Subject, window: Window) -> Self {
        Self { subject, window, began: Instant::now(), start: None }
    }

    /// To be called whenever the work so far is well defined; the result once the window is over.
    fn observe(&mut self, operations: u64) -> Result<Option<Measurement>> {
        let now = Instant::now();
        let Some(start) = &self.start else {
            if now - self.began >= self.window.warmup {
                self.start = Some(self.read(operations)?);
            }
            return Ok(None);
        };
        if now - start.at < self.window.measured || operations == start.operations {
            return Ok(None);
        }
        let end = self.read(operations)?;
        Ok(Some(Measurement {
            operations: end.operations - start.operations,
            cpu_ns: u64::try_from(end.cpu.since(&start.cpu).as_nanos())?,
            wall_ns: u64::try_from((end.at - start.at).as_nanos())?,
        }))
    }

    fn read(&self, operations: u64) -> Result<Reading> {
        Ok(Reading { operations, cpu: CpuTime::of_process(self.subject.pid)?, at: Instant::now() })
    }
}

#[cfg(test)]
mod tests;
