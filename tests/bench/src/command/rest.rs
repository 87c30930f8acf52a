//! `rest`: what requests of an application cost.

use std::collections::BTreeMap;
use std::io::{self, Write as _};

use anyhow::Result;
use serde::Serialize;

use crate::compare::{GatewayArgs, Head, TurnsArgs};
use crate::endpoint::Purpose;
use crate::generator::clients::Clients;
use crate::generator::requests::{self, Request, RequestPlan};
use crate::generator::{Measurement, Subject, Window};
use crate::message::{HUB, RELIABLE_JSON, STAMP_BYTES};
use crate::process;
use crate::procfs::Machine;
use crate::report;
use crate::stats::Summary;

/// The user of one connection; all others are another's.
const ONE: &str = "one";
const OTHERS: &str = "others";

/// What requests of an application cost: server CPU time per request of the data-plane REST API, with keep-alive.
///
/// Sends to a user with one connection, changes of that user's membership, and broadcasts; and, with many connections,
/// sends with a filter that selects nobody or one, against a send without a filter that has no receivers. A request
/// counts when it is answered and all who should have its message have it. Requests have an id each, as those of the
/// SDKs have; the first of each kind in a round is measured with a fresh process.
///
/// Azure's own table of throughput says that a unit does 180 sends to users and 3 broadcasts to 1,000 connections in a
/// second, and 100 units 18,000 and 3.
#[derive(clap::Args)]
pub struct RestArgs {
    /// Connections that a broadcast reaches.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(2..=100_000))]
    broadcast_connections: u32,
    /// Connections that filters select from.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(2..=100_000))]
    filter_connections: u32,
    /// HTTP connections, each with one request under way.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    http_connections: u16,
    /// Bytes of text in each message.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(16..=65_536))]
    payload_bytes: u32,
    #[command(flatten)]
    gateway: GatewayArgs,
    #[command(flatten)]
    turns: TurnsArgs,
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    head: Head,
    broadcast_connections: u32,
    filter_connections: u32,
    http_connections: u16,
    payload_bytes: u32,
    /// What a filter that selects nobody adds, divided by the connections: the cost to look at one.
    filter_cpu_ns_per_connection: Summary,
    cells: BTreeMap<&'static str, Cell>,
}

#[derive(Serialize)]
struct Cell {
    requests_per_cpu_second: Summary,
    cpu_ns_per_request: Summary,
    requests_per_second: Summary,
    rounds: Vec<Measurement>,
}

const USER: &str = "1 user send";
const MEMBERSHIP: &str = "2 membership";
const BROADCAST: &str = "3 broadcast";
const NO_FILTER: &str = "4 no filter";
const FILTER_NONE: &str = "5 filter: none";
const FILTER_ONE: &str = "6 filter: one";

type Rounds = BTreeMap<&'static str, Vec<Measurement>>;

/// Runs the command.
///
/// # Errors
/// The gateway cannot be started or pinned, refuses, or delivers not what it should.
pub fn run(args: &RestArgs) -> Result<()> {
    let connections = args.broadcast_connections.max(args.filter_connections);
    process::allow_descriptors(u64::from(connections) + u64::from(args.http_connections) + 256)?;
    let machine = Machine::describe()?;
    let window = args.turns.begin()?;
    let mut rounds = Rounds::new();
    for index in 0..args.turns.rounds {
        let member = |method, status| Request { method, status, ..to_user() };
        let (add, remove) = (member("PUT", 200), member("DELETE", 204));
        let membership = [add, remove].map(|request| Request {
            path: "users/one/groups/room",
            body: None,
            deliveries: 0,
            ..request
        });
        measure(args, window, 1, &mut rounds, &[(USER, vec![to_user()]), (MEMBERSHIP, membership.to_vec())])?;

        let deliveries = u64::from(args.broadcast_connections);
        let broadcast = Request { path: ":send", deliveries, ..to_user() };
        measure(args, window, args.broadcast_connections, &mut rounds, &[(BROADCAST, vec![broadcast])])?;

        let filtered = |query, deliveries| vec![Request { path: ":send", query, deliveries, ..to_user() }];
        let unfiltered = Request { path: "groups/nobody/:send", deliveries: 0, ..to_user() };
        let kinds = [
            (NO_FILTER, vec![unfiltered]),
            (FILTER_NONE, filtered("filter=userId%20eq%20%27nobody%27", 0)),
            (FILTER_ONE, filtered("filter=userId%20eq%20%27one%27", 1)),
        ];
        measure(args, window, args.filter_connections, &mut rounds, &kinds)?;
        writeln!(io::stderr(), "round {}/{}", index + 1, args.turns.rounds)?;
    }
    report(args, machine, rounds)
}

fn to_user() -> Request {
    Request {
        method: "POST",
        path: "users/one/:send",
        query: "",
        body: Some(String::new()),
        status: 202,
        deliveries: 1,
    }
}

/// Measures kinds of requests one after the other on a fresh gateway with so many clients.
fn measure(
    args: &RestArgs,
    window: Window,
    count: u32,
    rounds: &mut Rounds,
    kinds: &[(&'static str, Vec<Request>)],
) -> Result<()> {
    let running = args.gateway.server(&[]).start(Some(args.turns.server_core))?;
    let subject = Subject { endpoint: running.endpoint.clone(), pid: running.pid() };
    let mut clients = Clients::new()?;
    for (user, count) in [(ONE, 1), (OTHERS, count as usize - 1)] {
        let target = subject.endpoint.client_target_in(HUB, Purpose::Subscribe, Some(user))?;
        clients.open_all(count, &subject.endpoint, &target, RELIABLE_JSON)?;
    }
    for (name, requests) in kinds {
        let mut requests = requests.clone();
        for body in requests.iter_mut().filter_map(|request| request.body.as_mut()) {
            body.push_str(&"0".repeat(STAMP_BYTES));
            body.push_str(&"x".repeat(args.payload_bytes as usize - STAMP_BYTES));
        }
        let plan = RequestPlan { hub: HUB, requests: &requests, connections: args.http_connections, window };
        let measurement = requests::run(&subject, &mut clients, count as usize, &plan)?;
        rounds.entry(name).or_default().push(measurement);
    }
    Ok(())
}

fn report(args: &RestArgs, machine: Machine, rounds: Rounds) -> Result<()> {
    let pairs = rounds[NO_FILTER].iter().zip(&rounds[FILTER_NONE]);
    let connections = f64::from(args.filter_connections);
    let filtering = pairs
        .map(|(without, with)| (with.cpu_ns_per_operation() - without.cpu_ns_per_operation()) / connections);
    let filter_cpu_ns_per_connection = Summary::of(filtering)?;
    let cells = rounds.into_iter().map(|(name, rounds)| Ok((name, Cell::of(rounds)?)));
    let report = Report {
        head: args.turns.head("rest", "request", machine),
        broadcast_connections: args.broadcast_connections,
        filter_connections: args.filter_connections,
        http_connections: args.http_connections,
        payload_bytes: args.payload_bytes,
        filter_cpu_ns_per_connection,
        cells: cells.collect::<Result<_>>()?,
    };
    let mut out = io::stderr();
    report::write_titles(
        &mut out,
        "rest: requests per server CPU-second, and in a second",
        &report.head.machine,
    )?;
    for (name, cell) in &report.cells {
        report::write_row(&mut out, name, "CPU-s", &cell.requests_per_cpu_second, 1)?;
        report::write_row(&mut out, "", "second", &cell.requests_per_second, 1)?;
    }
    report::write_row(&mut out, "filter", "ns/conn.", &report.filter_cpu_ns_per_connection, 1)?;
    report::print_json(&report)
}

impl Cell {
    fn of(rounds: Vec<Measurement>) -> Result<Self> {
        let per_second = |one: &Measurement| one.operations as f64 * 1e9 / one.wall_ns as f64;
        Ok(Self {
            requests_per_cpu_second: Summary::of(rounds.iter().map(Measurement::operations_per_cpu_second))?,
            cpu_ns_per_request: Summary::of(rounds.iter().map(Measurement::cpu_ns_per_operation))?,
            requests_per_second: Summary::of(rounds.iter().map(per_second))?,
            rounds,
        })
    }
}
