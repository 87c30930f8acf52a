//! `store`: what an acknowledged append costs on the disk.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures_util::future::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use oncewire::config::Durability;
use oncewire::store::{EmbeddedStore, MemoryStore, Store};
use oncewire_protocol::log::{Body, BootId, Proposer, Published, Record, Time};
use oncewire_protocol::wire::{ConnectionId, GroupName, HubName, Metadata, Payload, PayloadKind, UserId};
use serde::Serialize;

use crate::procfs::{self, CpuTime, Machine};
use crate::report;
use crate::stats::Summary;

/// Acknowledged appends per second: the store on the disk against the least that any could do, and against memory.
///
/// So many publishers append one record each, and the next when it is acknowledged; those that are acknowledged
/// together do it in one call, as in a gateway. `raw` writes what they have in
/// flight at the end of a file and syncs it, all in one group, again and again: no reading, no checks, no waiting for
/// anybody. Each round measures all in turns, and what counts is the ratio within the round.
#[derive(clap::Args)]
pub struct StoreArgs {
    /// Where files are made, and removed again: on the disk that is to be measured.
    #[arg(long, default_value = ".", value_name = "DIRECTORY")]
    directory: PathBuf,
    /// Publishers that wait for an acknowledgement; each value is measured in each round.
    #[arg(long = "in-flight", value_delimiter = ',', default_value = "1,64,1024",
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    in_flight: Vec<u32>,
    /// Bytes of payload in each record.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    payload_bytes: u32,
    /// How many times each is measured.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Milliseconds that each is measured for.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..))]
    measured_ms: u64,
    /// What an append to the store on the disk waits for.
    #[arg(long, value_enum, default_value = "sync")]
    durability: DurabilityArg,
}

#[derive(Clone, Copy, Debug, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
enum DurabilityArg {
    /// The disk.
    Sync,
    /// The operating system; `raw` then does not sync either.
    Os,
}

/// What one subject did in one round.
#[derive(Clone, Copy, Debug, Serialize)]
struct Measurement {
    acknowledged_per_second: f64,
    written_per_payload_byte: f64,
    cpu_seconds_per_million: f64,
}

/// All rounds with one number of publishers.
#[derive(Debug, Serialize)]
struct Point {
    in_flight: u32,
    raw: Vec<Measurement>,
    disk: Vec<Measurement>,
    memory: Vec<Measurement>,
    disk_to_raw: Summary,
    disk_to_memory: Summary,
    disk_written_per_payload_byte: Summary,
}

#[derive(Debug, Serialize)]
struct Report {
    command: String,
    machine: Machine,
    payload_bytes: u32,
    record_bytes: usize,
    durability: DurabilityArg,
    points: Vec<Point>,
}

/// Runs the command.
///
/// # Errors
/// A file or store fails.
pub fn run(args: &StoreArgs) -> Result<()> {
    let machine = Machine::describe()?;
    let mut points = Vec::new();
    for &in_flight in &args.in_flight {
        let (mut raw, mut disk, mut memory) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..args.rounds {
            writeln!(io::stderr(), "{in_flight} in flight, round {} of {}", round + 1, args.rounds)?;
            raw.push(measure_raw(args, in_flight)?);
            disk.push(measure_disk(args, in_flight)?);
            memory.push(measure_store(args, in_flight, &MemoryStore::default())?);
        }
        let ratio = |other: &[Measurement]| {
            let rate = |measured: &Measurement| measured.acknowledged_per_second;
            Summary::of(disk.iter().zip(other).map(|(disk, other)| rate(disk) / rate(other)))
        };
        points.push(Point {
            in_flight,
            disk_to_raw: ratio(&raw)?,
            disk_to_memory: ratio(&memory)?,
            disk_written_per_payload_byte: Summary::of(
                disk.iter().map(|measured| measured.written_per_payload_byte),
            )?,
            raw,
            disk,
            memory,
        });
    }
    print_table(&points)?;
    report::print_json(&Report {
        command: report::command_line(),
        machine,
        payload_bytes: args.payload_bytes,
        record_bytes: record(0, args.payload_bytes)?.encode().len(),
        durability: args.durability,
        points,
    })
}

fn print_table(points: &[Point]) -> Result<()> {
    let mut out = io::stderr().lock();
    writeln!(out, "{:<16}{:<9}{:>10}{:>10}{:>10}{:>10}{:>10}", "", "", "min", "q1", "median", "q3", "max")?;
    for point in points {
        let name = format!("{} in flight", point.in_flight);
        let rates = |side: &[Measurement]| Summary::of(side.iter().map(|one| one.acknowledged_per_second));
        for (side, measured) in [("raw", &point.raw), ("disk", &point.disk), ("memory", &point.memory)] {
            report::write_row(&mut out, &name, side, &rates(measured)?, 0)?;
        }
        report::write_row(&mut out, &name, "/raw", &point.disk_to_raw, 2)?;
        report::write_row(&mut out, &name, "/memory", &point.disk_to_memory, 3)?;
        report::write_row(&mut out, &name, "written", &point.disk_written_per_payload_byte, 2)?;
    }
    Ok(())
}

/// The figures of the process before it does something.
struct Began {
    written_bytes: u64,
    cpu: CpuTime,
    at: Instant,
}

impl Began {
    fn now() -> Result<Self> {
        let cpu = CpuTime::of_process(std::process::id())?;
        Ok(Self { written_bytes: procfs::written_bytes()?, cpu, at: Instant::now() })
    }

    fn measure(self, acknowledged: u64, payload_bytes: u32) -> Result<Measurement> {
        let seconds = self.at.elapsed().as_secs_f64();
        let cpu = CpuTime::of_process(std::process::id())?.since(&self.cpu);
        let written_bytes = procfs::written_bytes()? - self.written_bytes;
        ensure!(acknowledged > 0, "nothing was acknowledged");
        let records = acknowledged as f64;
        Ok(Measurement {
            acknowledged_per_second: records / seconds,
            written_per_payload_byte: written_bytes as f64 / (records * f64::from(payload_bytes)),
            cpu_seconds_per_million: cpu.as_secs_f64() * 1e6 / records,
        })
    }
}

fn measure_raw(args: &StoreArgs, in_flight: u32) -> Result<Measurement> {
    let path = args.directory.join(format!("oncewire-bench-raw-{}", std::process::id()));
    let file = File::create_new(&path).with_context(|| path.display().to_string())?;
    std::fs::remove_file(path)?;
    let group = record(0, args.payload_bytes)?.encode().repeat(in_flight as usize);
    let deadline = Duration::from_millis(args.measured_ms);
    let began = Began::now()?;
    let mut groups = 0;
    while began.at.elapsed() < deadline {
        file.write_all_at(&group, groups * group.len() as u64)?;
        if matches!(args.durability, DurabilityArg::Sync) {
            file.sync_data()?;
        }
        groups += 1;
    }
    began.measure(groups * u64::from(in_flight), args.payload_bytes)
}

fn measure_disk(args: &StoreArgs, in_flight: u32) -> Result<Measurement> {
    let directory = args.directory.join(format!("oncewire-bench-store-{}", std::process::id()));
    let durability = match args.durability {
        DurabilityArg::Sync => Durability::Sync,
        DurabilityArg::Os => Durability::Os,
    };
    let store = EmbeddedStore::open(&directory, move |_| durability)?;
    let measured = measure_store(args, in_flight, &store);
    drop(store);
    std::fs::remove_dir_all(directory)?;
    measured
}

/// All in one task, as a hub's shard is: whoever is acknowledged appends again, all in one call, and the log is read.
fn measure_store(args: &StoreArgs, in_flight: u32, store: &dyn Store) -> Result<Measurement> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let log = store.open(&HubName::new("bench")?).await?;
        let mut tail = log.tail(log.end_now().await?);
        let records = (0..in_flight).map(|n| Ok(Arc::new(record(n, args.payload_bytes)?)));
        let records = records.collect::<Result<Vec<_>>>()?;
        let deadline = Duration::from_millis(args.measured_ms);
        let began = Began::now()?;
        let mut acknowledged = 0;
        let mut appends = FuturesUnordered::new();
        let mut ready = records;
        while began.at.elapsed() < deadline {
            if !ready.is_empty() {
                let append = log.append(ready.clone());
                appends.push(async move { append.await.map(|_| ready) });
                ready = Vec::new();
            }
            tokio::select! {
                biased;
                Some(portion) = tail.next() => drop(portion?),
                Some(again) = appends.next() => {
                    ready = again?;
                    acknowledged += ready.len() as u64;
                }
            }
            while let Some(Some(again)) = appends.next().now_or_never() {
                let again = again?;
                acknowledged += again.len() as u64;
                ready.extend(again);
            }
        }
        began.measure(acknowledged, args.payload_bytes)
    })
}

/// A publish to one group, with names as long as they are in use.
fn record(number: u32, payload_bytes: u32) -> Result<Record> {
    Ok(Record {
        key: Proposer::first_key(BootId(u128::MAX)),
        time: Time(1_800_000_000_000),
        sequence_ack: None,
        body: Body::Published(Published {
            publisher: Some(ConnectionId::new(&format!("bench-{number:026}"))),
            user_id: Some(UserId::new("user-000001")),
            groups: vec![GroupName::new("group")?],
            no_echo: false,
            ttl_seconds: 0,
            payload: Payload { kind: PayloadKind::Text, bytes: vec![b'x'; payload_bytes as usize].into() },
            metadata: Metadata::default(),
        }),
    })
}
