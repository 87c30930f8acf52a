//! One connection id: what is known of it as a whole, and the judgements about its sockets.

use std::collections::VecDeque;

use crate::acks::AckId;
use crate::event::{ClosedBy, Opened};
use crate::findings::Findings;
use crate::history::{Name, Place};
use crate::verdict::ViolationKind;

/// One connection id.
pub(crate) struct Session {
    pub(crate) name: Name,
    pub(crate) recorder: u32,
    pub(crate) opened: u32,
    pub(crate) hub: u32,
    pub(crate) reliable: bool,
    pub(crate) observes_sockets: bool,
    pub(crate) unordered_callbacks: bool,
    pub(crate) initial_groups: Vec<Name>,
    /// Indexes of its deliveries.
    pub(crate) delivered: Vec<u32>,
    /// The last `quiesced` at which it was open and attached.
    pub(crate) quiesced: Option<u32>,
    pub(crate) acks_ahead: bool,
    pub(crate) sequence_id_seen: u64,
    pub(crate) attached: bool,
    pub(crate) closed: Option<(u32, Option<ClosedBy>)>,
    pub(crate) socket: u32,
    /// Requests made on the current socket and not acked yet, as far as their ack ids were used on no other.
    awaiting: VecDeque<(u64, u32)>,
    /// Tries made on the current socket since the last `quiesced`: index into the ack ids, and place.
    asked: Vec<(u32, u32)>,
}

impl Session {
    pub(crate) fn new(at: Place, hub: u32, e: &Opened<Name>) -> Self {
        Self {
            name: e.connection,
            recorder: at.recorder,
            opened: at.index,
            hub,
            reliable: e.reliable,
            observes_sockets: e.observes_sockets,
            unordered_callbacks: e.unordered_callbacks,
            initial_groups: e.groups.clone(),
            delivered: Vec::new(),
            quiesced: None,
            acks_ahead: false,
            sequence_id_seen: 0,
            attached: true,
            closed: None,
            socket: 0,
            awaiting: VecDeque::new(),
            asked: Vec::new(),
        }
    }

    pub(crate) fn detach(&mut self) {
        self.attached = false;
        self.awaiting.clear();
        self.asked.clear();
    }

    pub(crate) fn resume(&mut self, findings: &mut Findings<'_>, at: Place) {
        if !self.reliable {
            return findings.malformed(at, "a session that isn't reliable can't be resumed");
        }
        if let Some((index, Some(ClosedBy::Server))) = self.closed {
            let closed = Place { recorder: at.recorder, index };
            return findings.violation(ViolationKind::ResumedAfterClose, [closed, at], |history| {
                format!("{} was resumed although the service had ended it", history.text(self.name))
            });
        }
        self.detach();
        self.attached = self.closed.is_none();
        self.socket += 1;
    }

    pub(crate) fn judge_ack_order(&mut self, findings: &mut Findings<'_>, at: Place, ack_id: u64) {
        let Some(position) = self.awaiting.iter().position(|(awaited, _)| *awaited == ack_id) else { return };
        findings.statistics.ack_order_judged += 1;
        if position > 0 {
            let earlier = Place { recorder: at.recorder, index: self.awaiting[0].1 };
            let asked = Place { recorder: at.recorder, index: self.awaiting[position].1 };
            findings.violation(ViolationKind::AckOutOfOrder, [earlier, asked, at], |history| {
                format!(
                    "{}: ack id {ack_id} was acked before {}",
                    history.text(self.name),
                    self.awaiting[0].0
                )
            });
        }
        self.awaiting.remove(position);
    }

    /// Notes a try over the current socket, `alone` if its ack id was used on no other.
    pub(crate) fn ask(&mut self, slot: u32, ack_id: u64, index: u32, alone: bool) {
        self.asked.push((slot, index));
        if alone {
            self.awaiting.push_back((ack_id, index));
        }
    }

    /// From here on completeness is demanded: of what was delivered (judged later) and of the acks.
    pub(crate) fn quiesce(&mut self, findings: &mut Findings<'_>, at: Place, ack_ids: &[AckId]) {
        self.quiesced = Some(at.index);
        findings.statistics.answers_demanded += self.asked.len() as u64;
        for (slot, index) in self.asked.drain(..) {
            if ack_ids[slot as usize].lacks_answer() {
                let tried = Place { recorder: at.recorder, index };
                findings.violation(ViolationKind::Unanswered, [tried, at], |history| {
                    format!(
                        "{} got too few acks for its tries of a request on one socket",
                        history.text(self.name)
                    )
                });
            }
        }
    }
}
