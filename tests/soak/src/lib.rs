//! Kills real gateways at random moments under load, and has the checker judge what their clients saw.
//!
//! The gateway is the program itself, killed with SIGKILL and started again over the same data. Clients are the
//! protocol crate's own, with the habits of the official ones; half of them dial through a proxy that cuts. Each keeps
//! one session over all kills; losing it is a failure. What they ask for and see is a history, which the same checker
//! judges that judges the simulation.

mod gateway;
mod peer;

use std::cell::RefCell;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use oncewire_checker::{History, Verdict, check};
use oncewire_proxy::{Action, Proxy, RandomFaults};
use oncewire_recorder::quiesced;
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::sync::watch;
use tokio::task::{JoinSet, LocalSet};

pub use gateway::{ACCESS_KEY, Gateway, GatewayCommand, Grant};
pub use peer::Counts;
use peer::{EVERYBODY, Peer, Run, Stage};

/// The hub of the soak.
const HUB: &str = "soak";
/// How long after that a kill may wait, in milliseconds.
const KILL_WAIT_MS_MAX: u64 = 300;
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
    /// How many clients there are.
    pub clients: usize,
    /// Outcomes of requests between two kills at least, and after the last, so that each kill meets work under way.
    pub outcomes_min: u64,
    /// For faults, pauses and what clients do. Processes run as they like, so a seed does not repeat a run.
    pub seed: u64,
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
    /// Faults of the proxy that struck.
    pub cuts: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { published, delivered, resumed, duplicates } = self.counts;
        write!(
            f,
            "{} kills, {} cuts, {published} outcomes, {delivered} deliveries, {resumed} resumes, {duplicates} duplicates",
            self.kills, self.cuts
        )
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
    let shared = Run {
        history: Rc::new(RefCell::new(history)),
        recorder,
        counts: Rc::default(),
        stage: watched,
        clients: round.clients,
        hub: HUB,
    };
    let mut peers = JoinSet::new();
    for index in 0..round.clients {
        let user = format!("c{index}");
        let url = gateway.client_url(Grant { hub: HUB, user: &user, groups: &[EVERYBODY] }).await?;
        let address = if index % 2 == 0 { gateway.address() } else { proxy.address() };
        peers.spawn_local(Peer::new(user, url, address, shared.clone(), random.random()).run());
    }
    let kills = tokio::select! {
        kills = storm(gateway, round, &mut random, &shared.counts) => kills?,
        ended = peers.join_next() => return Err(early(ended)),
    };
    proxy.set_random(None);
    let cuts = proxy.report().faults;
    proxy.strike_all(Action::CutRst);
    stage.send_replace(Stage::Heal);
    tokio::time::timeout(HEAL_WAIT, async {
        while let Some(ended) = peers.join_next().await {
            ended??;
        }
        anyhow::Ok(())
    })
    .await
    .context("clients wait for something that does not come")??;
    let mut history = shared.history.take();
    history.push(recorder, quiesced(None));
    let counts = shared.counts.take();
    Ok(Report { verdict: check(&history), history, counts, kills, cuts })
}

fn early(ended: Option<Result<Result<()>, tokio::task::JoinError>>) -> anyhow::Error {
    match ended {
        Some(Ok(Err(error))) => error,
        Some(Err(error)) => error.into(),
        Some(Ok(Ok(()))) | None => anyhow::anyhow!("a client ended before it was told to"),
    }
}

/// Kills and starts the gateway; returns how often it was killed.
async fn storm(
    gateway: &mut Gateway,
    round: &Round,
    random: &mut SmallRng,
    counts: &RefCell<Counts>,
) -> Result<u32> {
    let mut kills = 0;
    loop {
        let enough = counts.borrow().published + round.outcomes_min;
        while counts.borrow().published < enough {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if kills == round.kills {
            return Ok(kills);
        }
        tokio::time::sleep(Duration::from_millis(random.random_range(0..KILL_WAIT_MS_MAX))).await;
        gateway.kill().await?;
        kills += 1;
        while kills < round.kills && random.random_ratio(KILL_AT_START_PERMILLE, 1000) {
            let within = Duration::from_millis(random.random_range(0..START_MS_MAX));
            gateway.restart_and_kill_within(within).await?;
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
    Ok(())
}
