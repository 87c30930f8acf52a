//! Kills real gateways at random moments under load, and has the checker judge what their clients saw.
//!
//! The gateway is the program itself, killed with SIGKILL, now and then stopped with SIGTERM, and started again over the same
//! data. Clients are the protocol crate's own, with the habits of the official ones. Each keeps one session over all kills;
//! losing it is a failure. What they ask for and see is a history, which the same checker judges that judges the simulation.
//!
//! | file | holds |
//! |---|---|
//! | `peer.rs` | clients that publish, join and leave at random; half of them dial through a proxy that cuts |
//! | `fast.rs` | publishers at a steady rate, and subscribers that mostly listen |
//! | `patient.rs` | one publisher that waits for nobody, and one subscriber that acknowledges every 5 s |
//! | `ledger.rs` | what the latter have acknowledged, and what a restart may bring back of it |
//! | `line.rs` | what is common to all clients: the state machine, its socket, its history |
//! | `gateway.rs` | the process |

mod fast;
mod gateway;
mod ledger;
mod line;
mod patient;
mod peer;

use std::cell::RefCell;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use oncewire_checker::{History, Verdict, ViolationKind, check};
use oncewire_proxy::{Action, Proxy, RandomFaults};
use oncewire_recorder::quiesced;
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::sync::watch;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::Instant;

use fast::FAST_HUB;
pub use fast::Fast;
pub use gateway::{ACCESS_KEY, Gateway, GatewayCommand, Grant};
use ledger::{Ending, Ledger};
pub use ledger::{Redelivered, Spread};
pub use line::Counts;
use line::{EVERYBODY, Place, Run, Stage};
pub use patient::{Patient, PatientReport};
use peer::Peer;

/// The hub of the clients that do things at random.
const HUB: &str = "soak";
/// How long a start may run before it is killed too, in milliseconds.
const START_MS_MAX: u64 = 150;
/// How often a start is killed too, in a thousand.
const KILL_AT_START_PERMILLE: u32 = 200;
/// A safety net for a run that hangs.
const HEAL_WAIT: Duration = Duration::from_secs(600);

/// One round of a soak.
#[derive(Debug, Clone)]
pub struct Round {
    /// How often the gateway is killed.
    pub kills: u32,
    /// How often it is stopped instead, in a thousand. Stops come in addition to the kills.
    pub stops_permille: u32,
    /// How long it runs at least between two of these.
    pub run_min: Duration,
    /// How much longer it may run at random.
    pub run_more: Duration,
    /// How many clients there are that do things at random.
    pub clients: usize,
    /// How long such a client may rest between two requests, in milliseconds.
    pub rest_ms_max: u64,
    /// Outcomes of requests between two kills at least, and after the last, so that each kill meets work under way.
    pub outcomes_min: u64,
    /// Those that are fast, if any; the gateway has to be started with their [`Fast::configuration`].
    pub fast: Option<Fast>,
    /// For faults, pauses and what clients do. Processes run as they like, so a seed does not repeat a run.
    pub seed: u64,
}

impl Default for Round {
    fn default() -> Self {
        Self {
            kills: 0,
            stops_permille: 0,
            run_min: Duration::ZERO,
            run_more: Duration::from_millis(300),
            clients: 6,
            rest_ms_max: 12,
            outcomes_min: 30,
            fast: None,
            seed: 0,
        }
    }
}

/// What a round came to.
pub struct Report {
    /// The checker's judgement.
    pub verdict: Verdict,
    /// What was observed, for a closer look.
    pub history: History,
    /// What was counted.
    pub counts: Counts,
    /// Kills, those of starts included.
    pub kills: u32,
    /// Stops.
    pub stops: u32,
    /// Faults of the proxy that struck.
    pub cuts: u64,
    /// What restarts brought back to the fast subscribers, if there were any.
    pub redelivered: Option<Redelivered>,
    /// Messages that an outbox of theirs may hold.
    pub fast_bound: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kills, stops, cuts, verdict, .. } = self;
        let Counts { published, delivered, resumed, duplicates, .. } = self.counts;
        let [lost, doubled] =
            [ViolationKind::Lost, ViolationKind::Duplicated].map(|kind| verdict.count(kind));
        write!(
            f,
            "{kills} kills, {stops} stops, {cuts} cuts, {published} requests, {delivered} deliveries, {resumed} resumes, \
             {duplicates} duplicates; {lost} lost, {doubled} doubled"
        )?;
        match &self.redelivered {
            Some(redelivered) => write!(f, "\noutboxes of {}: {redelivered}", self.fast_bound),
            None => Ok(()),
        }
    }
}

/// Runs one round on a gateway that is running, which it is again at the end.
///
/// # Errors
/// When the gateway breaks its promise in a way that needs no checker, or does not run as it should. Everything else is
/// in the report's verdict.
pub async fn run(gateway: &mut Gateway, round: &Round) -> Result<Report> {
    LocalSet::new().run_until(run_here(gateway, round)).await
}

async fn run_here(gateway: &mut Gateway, round: &Round) -> Result<Report> {
    let mut random = SmallRng::seed_from_u64(round.seed);
    let proxy = Proxy::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), gateway.address()).await?;
    proxy.set_random(Some(RandomFaults {
        seed: round.seed,
        bytes_min: 500,
        bytes_max: 60_000,
        connections_max: u64::MAX,
        actions: vec![Action::CutRst, Action::CutFin],
    }));
    let (stage, watched) = watch::channel(Stage::Storm);
    let mut history = History::new();
    let recorder = history.recorder("soak");
    let shared =
        Run { history: Rc::new(RefCell::new(history)), recorder, counts: Rc::default(), stage: watched };
    let ledger: Rc<RefCell<Ledger>> = Rc::default();
    let mut clients = JoinSet::new();
    for index in 0..round.clients {
        let address = if index % 2 == 0 { gateway.address() } else { proxy.address() };
        let place = place(gateway, HUB, format!("c{index}"), vec![EVERYBODY], address, round.clients).await?;
        clients.spawn_local(Peer::new(place, shared.clone(), round.rest_ms_max, random.random()).run());
    }
    if let Some(fast) = round.fast {
        let all = fast.clients();
        let count = all.len();
        for (client, name, groups) in all {
            let place = place(gateway, FAST_HUB, name, groups, gateway.address(), count).await?;
            let (shared, ledger) = (shared.clone(), Rc::clone(&ledger));
            clients.spawn_local(fast::run(client, fast, place, shared, ledger, random.random()));
        }
    }
    let (kills, stops) = tokio::select! {
        ended = storm(gateway, round, &mut random, &shared.counts, &ledger) => ended?,
        ended = clients.join_next() => return Err(early(ended)),
    };
    proxy.set_random(None);
    let cuts = proxy.report().faults;
    proxy.strike_all(Action::CutRst);
    stage.send_replace(Stage::Heal);
    tokio::time::timeout(HEAL_WAIT, async {
        while let Some(ended) = clients.join_next().await {
            ended??;
        }
        anyhow::Ok(())
    })
    .await
    .context("clients wait for something that does not come")??;
    let mut history = shared.history.take();
    history.push(recorder, quiesced(None));
    Ok(Report {
        verdict: check(&history),
        history,
        counts: shared.counts.take(),
        kills,
        stops,
        cuts,
        redelivered: round.fast.map(|_| ledger.take().close()),
        fast_bound: round.fast.map_or(0, |fast| fast.bound()),
    })
}

async fn place(
    gateway: &Gateway,
    hub: &'static str,
    name: String,
    groups: Vec<&'static str>,
    address: SocketAddr,
    clients: usize,
) -> Result<Place> {
    let url = gateway.client_url(Grant { hub, user: &name, groups: &groups }).await?;
    Ok(Place { name, hub, groups, url, address, clients })
}

fn early(ended: Option<Result<Result<()>, tokio::task::JoinError>>) -> anyhow::Error {
    match ended {
        Some(Ok(Err(error))) => error,
        Some(Err(error)) => error.into(),
        Some(Ok(Ok(()))) | None => anyhow::anyhow!("a client ended before it was told to"),
    }
}

/// Kills or stops the gateway and starts it again; returns how often it did each.
async fn storm(
    gateway: &mut Gateway,
    round: &Round,
    random: &mut SmallRng,
    counts: &RefCell<Counts>,
    ledger: &RefCell<Ledger>,
) -> Result<(u32, u32)> {
    let (mut kills, mut stops) = (0, 0);
    loop {
        let enough = counts.borrow().published + round.outcomes_min;
        while counts.borrow().published < enough {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if kills == round.kills {
            return Ok((kills, stops));
        }
        tokio::time::sleep(round.run_min + round.run_more.mul_f64(random.random())).await;
        if random.random_ratio(round.stops_permille, 1000) {
            ledger.borrow_mut().ends(Ending::Stopped, Instant::now());
            gateway.stop().await?;
            stops += 1;
        } else {
            ledger.borrow_mut().ends(Ending::Killed, Instant::now());
            gateway.kill().await?;
            kills += 1;
        }
        ledger.borrow_mut().ended();
        while kills < round.kills && random.random_ratio(KILL_AT_START_PERMILLE, 1000) {
            let within = Duration::from_millis(random.random_range(0..START_MS_MAX));
            gateway.restart_and_kill_within(within).await?;
            ledger.borrow_mut().ends(Ending::Killed, Instant::now());
            kills += 1;
        }
        gateway.restart().await?;
    }
}

/// Fails when a round proves a broken promise, or proves nothing.
///
/// # Errors
/// With the checker's verdict, or with what was not exercised.
pub fn judge(report: &Report) -> Result<()> {
    if !report.verdict.is_ok() {
        bail!("{}\n{report}", report.verdict);
    }
    let statistics = &report.verdict.statistics;
    ensure!(statistics.must_arrive > 0, "no message was one that has to arrive: {report}");
    ensure!(report.kills == 0 || statistics.resumed > 0, "no session was resumed: {report}");
    let Some(redelivered) = &report.redelivered else { return Ok(()) };
    ensure!(redelivered.forgotten == 0, "a restart brought back what it had to remember: {report}");
    // At most half of the bound is unacknowledged, and a quarter without a mark.
    let most = redelivered.eager.max.max(redelivered.patient.max).max(redelivered.stopped.max);
    ensure!(most <= report.fast_bound, "a restart brought back more than an outbox may hold: {report}");
    Ok(())
}
