//! Judges sequence ids, per session and per socket. Knows nothing of requests, apart from which messages may expire.

use crate::event::{Event, Message};
use crate::findings::Findings;
use crate::history::{Name, Place};
use crate::ledger::Ledger;
use crate::verdict::ViolationKind;

/// The first integer that JavaScript's numbers can't tell from its successor.
const TOO_LARGE: u64 = 1 << 53;

pub(crate) fn judge(findings: &mut Findings<'_>, ledger: &Ledger) {
    let mut all: Vec<Ids> = ledger.sessions.iter().map(|_| Ids::default()).collect();
    for recorder in 0..findings.history.recorder_count() {
        let history = findings.history;
        for (index, event) in (0..).zip(history.events(recorder)) {
            let at = Place { recorder, index };
            let connection = match event {
                Event::Received(e) | Event::Delivered(e) => e.connection,
                Event::Resumed(e) => e.connection,
                Event::SequenceAck(e) => e.connection,
                _ => continue,
            };
            let Some(session) = ledger.session(at, connection) else { continue };
            let ids = &mut all[session as usize];
            let settings = &ledger.sessions[session as usize];
            match event {
                Event::Resumed(_) => ids.resume(),
                Event::SequenceAck(e) => ids.acked = ids.acked.max(e.sequence_id),
                Event::Received(e) => {
                    if let Some(id) = usable(findings, at, e, settings.reliable) {
                        ids.received(findings, ledger, at, e, id);
                    }
                }
                Event::Delivered(e) => {
                    if let Some(id) = usable(findings, at, e, settings.reliable) {
                        ids.delivered(findings, at, e, id, settings.unordered_callbacks);
                    }
                }
                _ => {}
            }
        }
    }
}

/// One session's sequence ids.
#[derive(Default)]
struct Ids {
    /// Every id that came in a frame, ascending.
    issued: Vec<Issued>,
    /// How far into `issued` the current socket has come; `None` before its first frame.
    cursor: Option<usize>,
    /// The last frame on the current socket.
    on_socket: Option<(u64, Place)>,
    /// The last delivery to the application.
    at_application: Option<(u64, Place)>,
    /// The largest id that the client acknowledged.
    acked: u64,
}

struct Issued {
    id: u64,
    group: Name,
    message: Name,
    at: Place,
}

impl Ids {
    fn resume(&mut self) {
        self.on_socket = None;
        self.cursor = None;
    }

    fn received(
        &mut self,
        findings: &mut Findings<'_>,
        ledger: &Ledger,
        at: Place,
        e: &Message<Name>,
        id: u64,
    ) {
        if !above(findings, &mut self.on_socket, at, id, true) {
            return;
        }
        let here = self.issued.partition_point(|issued| issued.id < id);
        let owed =
            self.cursor.unwrap_or_else(|| self.issued.partition_point(|issued| issued.id <= self.acked));
        self.cursor = Some(here + 1);
        let may_expire = |message| {
            ledger.requests_of(message).any(|r| ledger.requests[r as usize].content.ttl_seconds > 0)
        };
        for issued in &self.issued[owed.min(here)..here] {
            if issued.id > self.acked && !may_expire(issued.message) {
                findings.violation(ViolationKind::RedeliverySkipped, [issued.at, at], |history| {
                    format!(
                        "{}: {id} came again or anew without {} before it",
                        history.text(e.connection),
                        issued.id
                    )
                });
            }
        }
        match self.issued.get(here) {
            Some(issued) if issued.id == id => {
                findings.statistics.redelivered_frames_judged += 1;
                issued.compare(findings, at, e);
            }
            Some(issued) if !may_expire(e.message) => {
                self.cursor = Some(here);
                findings.violation(ViolationKind::SequenceIdInGap, [issued.at, at], |history| {
                    format!("{}: {id} is new, but {} came before", history.text(e.connection), issued.id)
                });
            }
            // Passed over as expired, it may come in its place later: after a restart whose clock had gone back, say.
            _ => self.issued.insert(here, Issued { id, group: e.group, message: e.message, at }),
        }
    }

    fn delivered(
        &mut self,
        findings: &mut Findings<'_>,
        at: Place,
        e: &Message<Name>,
        id: u64,
        unordered: bool,
    ) {
        if let Ok(index) = self.issued.binary_search_by_key(&id, |issued| issued.id) {
            self.issued[index].compare(findings, at, e);
        }
        if !unordered {
            above(findings, &mut self.at_application, at, id, false);
        }
    }
}

impl Issued {
    fn compare(&self, findings: &mut Findings<'_>, at: Place, e: &Message<Name>) {
        if (self.group, self.message) != (e.group, e.message) {
            findings.violation(ViolationKind::SequenceIdRenamed, [self.at, at], |history| {
                let (was, is) = (history.text(self.message), history.text(e.message));
                format!("{}: {} was {was} and is {is}", history.text(e.connection), self.id)
            });
        }
    }
}

/// The message's sequence id, if there has to be one and it can be one.
fn usable(findings: &mut Findings<'_>, at: Place, e: &Message<Name>, reliable: bool) -> Option<u64> {
    let kind = match (reliable, e.sequence_id) {
        (false, None) => return None,
        (false, Some(_)) => ViolationKind::SequenceIdUnexpected,
        (true, None) => ViolationKind::SequenceIdMissing,
        (true, Some(0)) => ViolationKind::SequenceIdZero,
        (true, Some(TOO_LARGE..)) => ViolationKind::SequenceIdTooLarge,
        (true, Some(id)) => {
            findings.statistics.sequence_ids_judged += 1;
            return Some(id);
        }
    };
    findings.violation(kind, [at], |history| {
        format!(
            "{} got {} with sequence id {:?}",
            history.text(e.connection),
            history.text(e.message),
            e.sequence_id
        )
    });
    None
}

/// Whether an id is above the last one, which it then replaces.
fn above(
    findings: &mut Findings<'_>,
    last: &mut Option<(u64, Place)>,
    at: Place,
    id: u64,
    frame: bool,
) -> bool {
    if let Some((before, place)) = *last {
        if id <= before {
            let judged = if frame { "on one socket" } else { "at the application" };
            findings.violation(ViolationKind::SequenceIdNotIncreasing, [place, at], |_| {
                format!("{id} after {before} {judged}")
            });
            return false;
        }
        findings.statistics.sequence_id_jumps += u64::from(!frame && id > before + 1);
    }
    *last = Some((id, at));
    true
}
