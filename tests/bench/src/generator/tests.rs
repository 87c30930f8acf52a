//! The loads against the floor, in this process: nothing is measured, but all of it runs.

use std::net::TcpListener;
use std::thread;

use super::accept;
use super::fanout::{self, FanoutPlan};
use super::inbound::{self, InboundPlan};
use super::*;
use crate::floor;

const WINDOW: Window = Window { warmup: Duration::ZERO, measured: Duration::ZERO };

/// Serves from a thread that ends with the test process.
fn floor() -> Subject {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(|| floor::serve(listener));
    let endpoint = format!("Endpoint=http://{address};AccessKey=k;").parse().unwrap();
    Subject { endpoint, pid: std::process::id() }
}

#[test]
fn fanout_counts_whole_bursts() {
    let plan = FanoutPlan { subscribers: 20, publishers: 2, burst: 8, payload_bytes: 128, window: WINDOW };
    let measurement = fanout::run(&floor(), &plan).unwrap();
    assert!(measurement.operations > 0);
    assert_eq!(measurement.operations % (20 * 2 * 8), 0);
}

#[test]
fn inbound_counts_acks() {
    let plan = InboundPlan { publishers: 4, burst: 16, payload_bytes: 128, window: WINDOW };
    assert!(inbound::run(&floor(), &plan).unwrap().operations > 0);
}

#[test]
fn accept_counts_handshakes() {
    assert!(accept::run(&floor(), 8, WINDOW).unwrap().operations > 0);
}

#[test]
fn a_measurement_is_per_operation_and_per_cpu_second() {
    let measurement = Measurement { operations: 4_000, cpu_ns: 2_000_000, wall_ns: 9_000_000 };
    assert_eq!(measurement.cpu_ns_per_operation(), 500.0);
    assert_eq!(measurement.operations_per_cpu_second(), 2_000_000.0);
    assert_eq!(Measurement { wall_ns: 8_000_000, ..measurement }.operations_per_second(), 500_000.0);
}
