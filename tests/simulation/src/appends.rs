//! What becomes of appends, and how durable records come back to the shards.

use std::sync::Arc;

use oncewire_protocol::hub::AppendId;
use oncewire_protocol::log::{Body, Certainty, EndReason, Record};

use crate::coverage::Path;
use crate::log::{Append, Appender, Fate};
use crate::world::{Event, World};

impl World {
    pub(crate) fn append(&mut self, hub: usize, by: Appender, records: Vec<Arc<Record>>) {
        let fate = self.draw_fate(records.len());
        if let Appender::Shard(shard, appending) = &by {
            let doubts = &mut self.hubs[hub].in_doubt;
            let is_in_doubt = |append: &AppendId| doubts.contains(&(*shard, *append));
            match fate.failure() {
                Some(Certainty::Definite) if appending.ids().iter().any(is_in_doubt) => {
                    self.note(Path::RetryRefused)
                }
                Some(Certainty::Indefinite) => {
                    doubts.extend(appending.ids().iter().map(|append| (*shard, *append)));
                }
                _ => {}
            }
        }
        let delay_us =
            self.random.within((self.weather.append_ms.0 * 1000, self.weather.append_ms.1 * 1000 + 50));
        let at_us = self.hubs[hub].last_append_us.max(self.now_us + delay_us);
        self.hubs[hub].last_append_us = at_us;
        self.trace.line(self.now_us, || format!("  append by {by:?}: {fate:?} {}", summary(&records)));
        self.hubs[hub].log.queue.push_back(Append { by, records, fate });
        self.schedule_at(at_us, Event::Append { hub, process: self.process });
    }

    fn draw_fate(&mut self, records: usize) -> Fate {
        let landing = self.random.below(records as u64 + 1) as usize;
        if self.now_us < self.outage_until {
            return match self.random.below(4) {
                0 => Fate::InDoubt(0),
                1 => Fate::Late(landing, self.random.within((1, 2_000))),
                _ => Fate::Refused,
            };
        }
        let draw = self.random.below(1000);
        if draw < self.weather.append_refused {
            Fate::Refused
        } else if draw < self.weather.append_refused + self.weather.append_in_doubt {
            if self.random.permille(self.weather.append_late) {
                Fate::Late(landing, self.random.within((1, 900)))
            } else {
                Fate::InDoubt(landing)
            }
        } else {
            Fate::Lands
        }
    }

    pub(crate) fn append_done(&mut self, hub: usize) {
        let Some(Append { by, records, fate }) = self.hubs[hub].log.queue.pop_front() else { return };
        match fate {
            Fate::Lands => self.land(hub, &records),
            Fate::Refused => self.note(Path::AppendRefused),
            Fate::InDoubt(landing) => {
                self.note(match landing {
                    0 => Path::AppendInDoubtNothing,
                    all if all == records.len() => Path::AppendInDoubtAll,
                    _ => Path::AppendInDoubtPrefix,
                });
                self.land(hub, &records[..landing]);
            }
            Fate::Late(landing, after_ms) => {
                let late = records[..landing].to_vec();
                let event = Event::LateLanding { hub, process: self.process, records: late };
                self.schedule_in((after_ms, after_ms), event);
            }
        }
        let outcome = fate.failure().map_or(Ok(()), Err);
        if let Err(certainty) = outcome {
            self.note_failure(&by, &records, certainty);
        }
        match by {
            Appender::Boot if outcome.is_err() => {
                self.schedule_in((20, 100), Event::Boot { hub, process: self.process });
            }
            Appender::Boot => {}
            Appender::Shard(shard, appending) => self.append_ended(hub, shard, appending, outcome),
        }
    }

    fn note_failure(&mut self, by: &Appender, records: &[Arc<Record>], certainty: Certainty) {
        if records.iter().any(|record| matches!(record.body, Body::Acked { .. })) {
            self.note(Path::MarksFailed);
        }
        let has_end = records.iter().any(|record| matches!(record.body, Body::Ended { .. }));
        if has_end && certainty == Certainty::Definite {
            self.note(Path::Doomed);
        }
        if matches!(by, Appender::Boot) && certainty == Certainty::Indefinite {
            self.note(Path::BootInDoubt);
        }
    }

    pub(crate) fn land_late(&mut self, hub: usize, records: &[Arc<Record>]) {
        if records.is_empty() {
            return;
        }
        self.note(Path::AppendLate);
        if records.iter().any(|record| self.hubs[hub].log.has_later(record)) {
            self.note(Path::AppendLateAfterOthers);
        }
        self.land(hub, records);
    }

    fn land(&mut self, hub: usize, records: &[Arc<Record>]) {
        for record in records {
            let gap = if self.random.permille(50) { self.random.below(5) } else { 0 };
            if self.hubs[hub].log.land(record, gap) {
                self.note(Path::Twin);
            }
            if matches!(record.body, Body::Acked { .. }) {
                self.note(Path::Marked);
            }
            if record.sequence_ack.is_some() {
                self.note(Path::MarkedWithRequest);
            }
        }
        if !records.is_empty() {
            self.trace.line(self.now_us, || format!("  landed {}", summary(records)));
        }
        let log = &mut self.hubs[hub].log;
        if log.needs_sync() && !log.is_syncing {
            log.is_syncing = true;
            self.schedule_in(self.weather.sync_ms, Event::Sync { hub, process: self.process });
        }
    }

    pub(crate) fn sync_done(&mut self, hub: usize) {
        self.hubs[hub].log.sync();
        self.schedule_tails(hub);
    }

    pub(crate) fn schedule_tails(&mut self, hub: usize) {
        for shard in 0..self.hubs[hub].shards.len() {
            self.schedule_tail(hub, shard);
        }
    }

    fn readable(&self, hub: usize) -> usize {
        self.hubs[hub].log.durable()
    }

    fn schedule_tail(&mut self, hub: usize, shard: usize) {
        let readable = self.readable(hub);
        let node = &mut self.hubs[hub].shards[shard];
        if node.cursor < readable && !node.is_tail_scheduled {
            node.is_tail_scheduled = true;
            self.schedule_in(self.weather.tail_ms, Event::Tail { hub, shard, process: self.process });
        }
    }

    pub(crate) fn tail(&mut self, hub: usize, shard: usize) {
        let most = self.random.pick(&[1, 3, 20, 200]);
        // A tail that was opened anew may bring what has been read before.
        let again = if self.random.permille(20) { self.random.index(20) } else { 0 };
        if again > 0 {
            self.note(Path::ReadAgain);
        }
        let readable = self.readable(hub);
        let node = &mut self.hubs[hub];
        let state = &mut node.shards[shard];
        state.is_tail_scheduled = false;
        let from = state.cursor.saturating_sub(again).max(node.log.first());
        let to = readable.min(state.cursor + most);
        state.cursor = to;
        let records = node.log.read(from, to);
        for (_, record) in &records {
            self.note_ttl(hub, record);
            if let Body::Ended { reason, .. } = &record.body {
                let path = match reason {
                    EndReason::ClientClosed => Path::EndedByClient,
                    EndReason::ProtocolViolation => Path::EndedByViolation,
                    EndReason::OutboxFull => Path::EndedByOverflow,
                    EndReason::Expired => Path::EndedByExpiry,
                    EndReason::Shed => Path::EndedByShedding,
                    EndReason::ClosedByApplication | EndReason::Stopped => continue,
                };
                self.note(path);
            }
        }
        self.hubs[hub].shards[shard].portion.extend(records);
        self.schedule_run(hub, shard);
        self.schedule_tail(hub, shard);
    }
}

/// Records as a trace shows them.
pub(crate) fn summary(records: &[Arc<Record>]) -> String {
    let one = |record: &Arc<Record>| {
        let what = match &record.body {
            Body::Booted { .. } => "booted",
            Body::Opened(_) => "opened",
            Body::Joined { .. } => "joined",
            Body::Left { .. } => "left",
            Body::Published(_) => "published",
            Body::Granted { .. } => "granted",
            Body::Revoked { .. } => "revoked",
            Body::Ended { .. } => "ended",
            Body::Sent(_) => "sent",
            Body::Added { .. } => "added",
            Body::Removed { .. } => "removed",
            Body::Closed { .. } => "closed",
            Body::Handled { .. } => "handled",
            Body::Told { .. } => "told",
            Body::Acked { .. } => "acked",
            Body::Refused(_) => "refused",
            Body::NodeStarted(_) => "started",
            Body::NodeGone(_) => "gone",
            Body::Attached { .. } => "attached",
            Body::Released { .. } => "released",
        };
        let session = record.body.connection_id().map_or("", |id| id.as_str());
        let ack = record.key.ack.map_or(String::new(), |ack| format!("!{}", ack.ack_id));
        format!("{what} {session} {}.{}{ack}", record.key.boot.shard, record.key.boot.counter)
    };
    records.iter().map(one).collect::<Vec<_>>().join(", ")
}
