//! Floods: what hostile or careless clients do to a server, for as long as it is to go on.
//!
//! [`kind`] has what each kind is, [`swarm`] has the sockets that do it. Unlike everywhere else in the generator it is no
//! failure here when the server answers with an error or hangs up: that is counted.

pub mod kind;
pub mod swarm;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Result, anyhow};
use serde::Serialize;

use self::kind::Kind;
use self::swarm::Swarm;
use crate::endpoint::Endpoint;

/// Niceness of the flood's thread, so that a bystander on the same core is not made to wait by the flood's own work.
const NICENESS: i32 = 15;

/// What a flood came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Load {
    /// Connections that were opened.
    pub opened: u64,
    /// Those that the server ended.
    pub hung_up: u64,
    /// Attempts to connect that failed.
    pub unconnected: u64,
    /// Messages, requests or parts of one that were sent in full; in full means that the kernel took them.
    pub parts: u64,
    /// Bytes that were sent.
    pub bytes: u64,
    /// HTTP answers that were read, by status; 101 is an upgrade.
    pub answers: BTreeMap<u16, u64>,
    /// Requests over sockets that were refused.
    pub refusals: u64,
}

/// A flood that goes on until it is stopped, on a thread of its own.
pub struct Flood {
    is_stopped: Arc<AtomicBool>,
    thread: JoinHandle<Result<Load>>,
}

impl Flood {
    /// Begins it, on the cores of the calling thread.
    pub fn begin(endpoint: &Endpoint, kind: Kind) -> Self {
        let is_stopped = Arc::new(AtomicBool::new(false));
        let (endpoint, flag) = (endpoint.clone(), Arc::clone(&is_stopped));
        let thread = thread::spawn(move || {
            // Of this thread only: Linux knows no process here.
            rustix::process::setpriority_process(None, NICENESS)?;
            let mut swarm = Swarm::new(endpoint.address, kind.script(&endpoint)?);
            while !flag.load(Ordering::Relaxed) {
                swarm.sweep()?;
            }
            Ok(swarm.load())
        });
        Self { is_stopped, thread }
    }

    /// Ends it, and tells what it came to.
    ///
    /// # Errors
    /// It could not be made.
    pub fn stop(self) -> Result<Load> {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the flood panicked"))?
    }
}
