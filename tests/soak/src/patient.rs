//! One subscriber that acknowledges every 5 s, as the Java client does, and a publisher that waits for nobody.
//!
//! Unlike the publishers of `fast.rs` this one does not slow down for what is unacknowledged: the gateway's bounds have to
//! be enough for the habit. Its messages go over the gateway's own address, those to the subscriber over a proxy if
//! sockets are to be cut.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use oncewire_checker::{History, Verdict, ViolationKind, check};
use oncewire_protocol::client::ClientSettings;
use oncewire_proxy::{Action, Proxy};
use oncewire_recorder::quiesced;
use tokio::sync::watch;
use tokio::task::LocalSet;
use tokio::time::Instant;

use crate::gateway::Gateway;
use crate::line::{Counts, EVERYBODY, Line, Run, Stage, Told};
use crate::place;

/// The group that is published to.
const FEED: &str = "feed";
/// Between two looks at what is to be published.
const TICK: Duration = Duration::from_millis(10);
/// Publishes that wait for their acks at most; then the rest is late, and is made up for.
const PENDING_MAX: usize = 1_000;
/// How long the last messages may take. A safety net for a run that hangs.
const HEAL_WAIT: Duration = Duration::from_secs(120);

/// What is published, and how often the subscriber's socket is cut.
#[derive(Debug, Clone, Copy)]
pub struct Patient {
    /// A hub of its own: sessions of an earlier run wait there for a while, and would get this run's messages too.
    pub hub: &'static str,
    /// Messages in a second.
    pub publishes_per_second: u32,
    /// For how many seconds.
    pub seconds: u32,
    /// Time between two cuts; none: one socket for all of it.
    pub cut_every: Option<Duration>,
}

/// What came of it.
pub struct PatientReport {
    /// The checker's judgement.
    pub verdict: Verdict,
    /// Of publisher and subscriber.
    pub counts: Counts,
    /// Messages that were acknowledged to the publisher.
    pub sent: u64,
    /// Messages that the subscriber's application got.
    pub delivered: u64,
    /// Messages that the subscriber had got and not acknowledged at a time.
    pub unacknowledged_max: u64,
    /// Cuts of the proxy.
    pub cuts: u64,
    /// Sockets that ended without a cut.
    pub cut_off: u64,
    /// From the first publish to the last.
    pub took: Duration,
    /// Why it ended early, if it did.
    pub failure: Option<String>,
}

impl PatientReport {
    /// Whether all arrived once and in order, and the gateway turned nobody away.
    pub fn is_ok(&self) -> bool {
        let Counts { refused, closed, .. } = self.counts;
        self.failure.is_none()
            && self.verdict.is_ok()
            && self.verdict.statistics.must_arrive > 0
            && self.sent == self.delivered
            && (refused, closed, self.cut_off) == (0, 0, 0)
    }
}

impl fmt::Display for PatientReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, delivered, unacknowledged_max, cuts, cut_off, took, .. } = self;
        let Counts { refused, closed, resumed, .. } = self.counts;
        let [lost, doubled, reordered] =
            [ViolationKind::Lost, ViolationKind::Duplicated, ViolationKind::OutOfOrder]
                .map(|kind| self.verdict.count(kind));
        write!(
            f,
            "{sent} sent in {:.1} s, {delivered} delivered, {lost} lost, {doubled} doubled, {reordered} reordered; {refused} \
             times refused, {closed} times closed and {cut_off} times cut off by the gateway; {cuts} cuts, {resumed} resumes, \
             at most {unacknowledged_max} unacknowledged",
            took.as_secs_f64()
        )?;
        match &self.failure {
            Some(failure) => write!(f, "; ended early: {failure}"),
            None => Ok(()),
        }
    }
}

#[derive(Debug, Default)]
struct Tally {
    sent: u64,
    delivered: u64,
    unacknowledged_max: u64,
    left: u64,
    took: Duration,
}

impl Patient {
    /// Runs it on a gateway that is running.
    ///
    /// # Errors
    /// When it cannot begin. What goes wrong later is in the report.
    pub async fn run(self, gateway: &Gateway) -> Result<PatientReport> {
        LocalSet::new().run_until(self.run_here(gateway)).await
    }

    async fn run_here(self, gateway: &Gateway) -> Result<PatientReport> {
        let proxy = Proxy::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), gateway.address()).await?;
        let (stage, watched) = watch::channel(Stage::Storm);
        let mut history = History::new();
        let recorder = history.recorder("patient");
        let run =
            Run { history: Rc::new(RefCell::new(history)), recorder, counts: Rc::default(), stage: watched };
        let line = async |name: &str, groups, address, habits| -> Result<Line> {
            let place = place(gateway, self.hub, name.to_owned(), groups, address, 2).await?;
            Ok(Line::new(place, run.clone(), habits))
        };
        let through = if self.cut_every.is_some() { proxy.address() } else { gateway.address() };
        let like_java = ClientSettings::like_java();
        let mut subscriber = line("subscriber", vec![EVERYBODY, FEED], through, like_java).await?;
        let like_javascript = ClientSettings::like_javascript();
        let mut publisher = line("publisher", vec![EVERYBODY], gateway.address(), like_javascript).await?;

        let tally = RefCell::new(Tally::default());
        let (present, is_present) = watch::channel(false);
        let all = async {
            tokio::try_join!(
                subscribe(&mut subscriber, &present, &tally),
                self.publish(&mut publisher, is_present, &stage, &tally),
                self.cut(&proxy, run.stage.clone()),
            )
        };
        let wait = Duration::from_secs(self.seconds.into()) * 2 + HEAL_WAIT;
        let ended =
            tokio::time::timeout(wait, all).await.context("clients wait for something that does not come");
        let failure = ended.and_then(|ended| ended).err().map(|error| format!("{error:#}"));
        let mut history = run.history.take();
        history.push(recorder, quiesced(None));
        let tally = tally.into_inner();
        let cuts = proxy.report().faults;
        Ok(PatientReport {
            verdict: check(&history),
            counts: run.counts.take(),
            sent: tally.sent,
            delivered: tally.delivered,
            unacknowledged_max: tally.unacknowledged_max,
            cuts,
            cut_off: tally.left.saturating_sub(cuts),
            took: tally.took,
            failure,
        })
    }

    async fn publish(
        self,
        line: &mut Line,
        mut is_present: watch::Receiver<bool>,
        stage: &watch::Sender<Stage>,
        tally: &RefCell<Tally>,
    ) -> Result<()> {
        is_present.wait_for(|is_present| *is_present).await?;
        let total = u64::from(self.publishes_per_second) * u64::from(self.seconds);
        let mut next = Instant::now();
        let (mut began, mut number) = (None, 0);
        while !line.is_done() {
            match line.next(next).await? {
                Some(Told::Done(_)) => tally.borrow_mut().sent += 1,
                Some(_) => {}
                None => {
                    next = Instant::now() + TICK;
                    if number == total {
                        line.say_last();
                    } else if line.may_ask(PENDING_MAX) {
                        let began = *began.get_or_insert_with(Instant::now);
                        let due = self.due(began.elapsed()).min(total);
                        while number < due && line.may_ask(PENDING_MAX) {
                            number += 1;
                            line.publish(FEED, &format!("feed-{number}"), 100, false);
                        }
                        tally.borrow_mut().took = began.elapsed();
                    }
                    if number == total {
                        stage.send_replace(Stage::Heal);
                    }
                }
            }
        }
        // The last was no message of the feed.
        tally.borrow_mut().sent -= 1;
        Ok(())
    }

    /// How many are to be published by then.
    fn due(self, elapsed: Duration) -> u64 {
        (elapsed.as_secs_f64() * f64::from(self.publishes_per_second)) as u64
    }

    async fn cut(self, proxy: &Proxy, mut stage: watch::Receiver<Stage>) -> Result<()> {
        let Some(every) = self.cut_every else { return Ok(()) };
        loop {
            tokio::select! {
                () = tokio::time::sleep(every) => { proxy.strike_all(Action::CutRst); }
                healed = stage.wait_for(|stage| *stage == Stage::Heal) => return Ok(healed.map(|_| ())?),
            }
        }
    }
}

async fn subscribe(line: &mut Line, present: &watch::Sender<bool>, tally: &RefCell<Tally>) -> Result<()> {
    // In a session ids only grow: there are gaps between them.
    let mut unacknowledged = VecDeque::new();
    let mut last = 0;
    let mut next = Instant::now();
    while !line.is_done() {
        match line.next(next).await? {
            Some(Told::Connected) => {
                present.send_replace(true);
            }
            Some(Told::Received(id)) => {
                if id > last {
                    unacknowledged.push_back(id);
                    last = id;
                }
                let mut tally = tally.borrow_mut();
                tally.unacknowledged_max = tally.unacknowledged_max.max(unacknowledged.len() as u64);
            }
            Some(Told::Acknowledged(id)) => {
                while unacknowledged.front().is_some_and(|unacknowledged| *unacknowledged <= id) {
                    unacknowledged.pop_front();
                }
            }
            Some(Told::Delivered(marker)) if marker.starts_with(FEED) => tally.borrow_mut().delivered += 1,
            Some(Told::Left) => tally.borrow_mut().left += 1,
            Some(_) => {}
            None => {
                next = Instant::now() + TICK;
                if line.stage() == Stage::Heal && line.may_ask(PENDING_MAX) {
                    line.say_last();
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_grows_with_time_and_not_with_looks() {
        let patient = Patient { hub: "h", publishes_per_second: 2_500, seconds: 60, cut_every: None };
        assert_eq!(patient.due(Duration::ZERO), 0);
        assert_eq!(patient.due(Duration::from_millis(10)), 25);
        assert_eq!(patient.due(Duration::from_secs(60)), 150_000);
    }
}
