//! Judges what each session got against what was published: copies, order, membership, loss.

use std::collections::HashMap;

use crate::causality::Causality;
use crate::event::{Event, Message};
use crate::findings::Findings;
use crate::history::{Name, Place};
use crate::ledger::{Action, Ledger, Request};
use crate::membership::{Memberships, Span};
use crate::session::Session;
use crate::verdict::ViolationKind;

pub(crate) fn judge(findings: &mut Findings<'_>, ledger: &Ledger, causality: &Causality) {
    let memberships = Memberships::new(ledger);
    let mut publishes: HashMap<Name, Vec<u32>> = HashMap::new();
    for (id, request) in (0..).zip(&ledger.requests) {
        if matches!(request.content.action, Action::Publish(_)) {
            publishes.entry(request.content.group).or_default().push(id);
        }
    }
    let mut judge = Judge {
        ledger,
        causality,
        memberships: &memberships,
        got: vec![Got::default(); findings.history.name_count()],
        missing: Vec::new(),
        newest: vec![None; ledger.stream_count()],
    };
    for id in 0..ledger.sessions.len() as u32 {
        judge.session(findings, id, &publishes);
    }
}

struct Judge<'a> {
    ledger: &'a Ledger,
    causality: &'a Causality,
    memberships: &'a Memberships,
    /// Per message name: what the current session got of it. Cleared between sessions.
    got: Vec<Got>,
    /// The messages that the current session lacks. Cleared between sessions.
    missing: Vec<Name>,
    /// Per publisher's stream: the delivery to the current session whose request was certainly made latest. Cleared
    /// between sessions.
    newest: Vec<Option<Newest>>,
}

#[derive(Clone, Copy, Default)]
struct Got {
    copies: u32,
    demanded: u32,
    first: u32,
}

#[derive(Clone, Copy)]
struct Newest {
    lo: u32,
    delivered: u32,
}

/// Whether a request may have caused a delivery.
enum Cause {
    Possible,
    Impossible(ViolationKind),
}

impl Judge<'_> {
    fn session(&mut self, findings: &mut Findings<'_>, id: u32, publishes: &HashMap<Name, Vec<u32>>) {
        let session = &self.ledger.sessions[id as usize];
        let events = findings.history.events(session.recorder);
        let messages: Vec<(u32, &Message<Name>)> = session
            .delivered
            .iter()
            .filter_map(|index| match &events[*index as usize] {
                Event::Delivered(e) => Some((*index, e)),
                _ => None,
            })
            .collect();
        for (index, e) in &messages {
            self.delivery(findings, id, *index, e);
        }
        self.order(findings, id, &messages);
        for group in self.memberships.groups(id) {
            for request in publishes.get(group).into_iter().flatten() {
                self.demand(findings, id, *request);
            }
        }
        for message in self.missing.drain(..) {
            self.got[message.0 as usize] = Got::default();
        }
        for (_, e) in &messages {
            self.got[e.message.0 as usize] = Got::default();
            for request in self.ledger.requests_of(e.message) {
                self.newest[self.ledger.requests[request as usize].stream as usize] = None;
            }
        }
    }

    /// One delivery: is there a request behind it, and one for each copy?
    fn delivery(&mut self, findings: &mut Findings<'_>, id: u32, index: u32, e: &Message<Name>) {
        if self.ledger.replies.contains(&e.message) {
            return;
        }
        findings.statistics.copies_judged += 1;
        let got = &mut self.got[e.message.0 as usize];
        if got.copies == 0 {
            got.first = index;
        }
        got.copies += 1;
        let copies = got.copies;
        let mut possible = 0;
        let mut nearest = (ViolationKind::Phantom, None);
        for request in self.ledger.requests_of(e.message) {
            match self.cause(id, index, e, &self.ledger.requests[request as usize]) {
                Cause::Possible => possible += 1,
                Cause::Impossible(kind) => nearest = (kind, Some(request)),
            }
        }
        let kind = if possible == 0 { nearest.0 } else { ViolationKind::Duplicated };
        if copies <= possible {
            return;
        }
        let at = self.ledger.place(id, index);
        let first = (copies > 1).then(|| self.ledger.place(id, self.got[e.message.0 as usize].first));
        let request = nearest.1.or_else(|| self.ledger.requests_of(e.message).next());
        let published = request.map(|r| self.published(&self.ledger.requests[r as usize]));
        findings.violation(kind, published.into_iter().chain(first).chain([at]), |history| {
            let [connection, group, message] =
                [e.connection, e.group, e.message].map(|name| history.text(name));
            format!("{connection} got {message} in {group}, copy {copies} of {possible}")
        });
    }

    fn cause(&self, id: u32, index: u32, e: &Message<Name>, request: &Request) -> Cause {
        let session = &self.ledger.sessions[id as usize];
        let at = self.ledger.place(id, index);
        let published = self.published(request);
        let kind = if self.ledger.sessions[request.session as usize].hub != session.hub {
            ViolationKind::HubCrossed
        } else if request.content.group != e.group || self.causality.before(at, published) {
            ViolationKind::Phantom
        } else if request.refused {
            ViolationKind::RefusedDelivered
        } else if request.content.no_echo && request.session == id {
            ViolationKind::Echo
        } else if let Some(kind) = self.outside(id, request, Some(at)) {
            kind
        } else {
            return Cause::Possible;
        };
        Cause::Impossible(kind)
    }

    /// Whether the session certainly was not a member whenever the request can have been executed, and what that
    /// makes of a delivery.
    fn outside(&self, id: u32, request: &Request, delivered: Option<Place>) -> Option<ViolationKind> {
        let Some(membership) = self.memberships.get(id, request.content.group) else {
            return Some(ViolationKind::NotMember);
        };
        let span = self.span_before(id, &membership.outside, request)?;
        let apart = self.over_before_end(id, span, request)
            || matches!((span.to, delivered), (Some(to), Some(at)) if at.index < to);
        apart.then_some(if span.from.is_none() {
            ViolationKind::NotMember
        } else {
            ViolationKind::AfterLeave
        })
    }

    /// The last span that certainly had begun before the first try of the request.
    fn span_before(&self, id: u32, spans: &[Span], request: &Request) -> Option<Span> {
        let published = self.published(request);
        let begun = spans.partition_point(|span| match span.from {
            Some(from) => self.causality.before(self.ledger.place(id, from), published),
            None => true,
        });
        begun.checked_sub(1).map(|last| spans[last])
    }

    /// Whether the request certainly was executed before the span's end.
    fn over_before_end(&self, id: u32, span: Span, request: &Request) -> bool {
        span.to.is_none_or(|to| self.executed_before(request, self.ledger.place(id, to)))
    }

    fn executed_before(&self, request: &Request, place: Place) -> bool {
        let acked = request.acked.map(|index| self.ledger.place(request.session, index));
        acked.into_iter().chain(request.delivered).any(|at| self.causality.before(at, place))
    }

    fn published(&self, request: &Request) -> Place {
        self.ledger.place(request.session, request.lo)
    }

    /// The order of each publisher's messages.
    fn order(&mut self, findings: &mut Findings<'_>, id: u32, messages: &[(u32, &Message<Name>)]) {
        let session = &self.ledger.sessions[id as usize];
        if !session.unordered_callbacks {
            messages.iter().for_each(|(index, e)| self.in_order(findings, id, *index, e));
        } else if session.reliable {
            let mut sorted = messages.to_vec();
            sorted.sort_by_key(|(_, e)| e.sequence_id);
            sorted.iter().for_each(|(index, e)| self.in_order(findings, id, *index, e));
        }
    }

    fn in_order(&mut self, findings: &mut Findings<'_>, id: u32, index: u32, e: &Message<Name>) {
        let Some(request) = self.ledger.only_request_of(e.message) else { return };
        let request = &self.ledger.requests[request as usize];
        if request.content.group != e.group || self.got[e.message.0 as usize].copies > 1 {
            return;
        }
        let newest = &mut self.newest[request.stream as usize];
        if let Some(before) = *newest {
            findings.statistics.order_judged += 1;
            if request.hi < before.lo {
                let evidence = [
                    self.ledger.place(request.session, request.hi),
                    self.ledger.place(request.session, before.lo),
                    self.ledger.place(id, before.delivered),
                    self.ledger.place(id, index),
                ];
                findings.violation(ViolationKind::OutOfOrder, evidence, |history| {
                    let [connection, message] = [e.connection, e.message].map(|name| history.text(name));
                    format!("{connection} got {message} after a later message of the same publisher")
                });
            }
        }
        if newest.is_none_or(|before| before.lo < request.lo) {
            *newest = Some(Newest { lo: request.lo, delivered: index });
        }
    }

    /// One message published to a group of the session: did it have to arrive, and did it?
    fn demand(&mut self, findings: &mut Findings<'_>, id: u32, request_id: u32) {
        let request = &self.ledger.requests[request_id as usize];
        let session = &self.ledger.sessions[id as usize];
        let Action::Publish(message) = request.content.action else { return };
        let executed = request.acked.is_some() || request.delivered.is_some();
        if request.refused || !executed || self.ledger.sessions[request.session as usize].hub != session.hub {
            return;
        }
        let Some(membership) = self.memberships.get(id, request.content.group) else { return };
        let inside = self
            .span_before(id, &membership.inside, request)
            .filter(|span| self.over_before_end(id, *span, request));
        let Some(inside) = inside else {
            findings.statistics.must_not_arrive += u64::from(self.outside(id, request, None).is_some());
            return;
        };
        if request.content.no_echo && request.session == id {
            findings.statistics.echoes_suppressed += 1;
            return;
        }
        self.own_before_ack(findings, id, request, message);
        let precedes = self.precedes_a_delivery(request, message);
        let live = session.quiesced.filter(|index| self.settled(request, self.ledger.place(id, *index)));
        if session.acks_ahead || (live.is_none() && precedes.is_none()) {
            return;
        }
        if self.may_expire(findings, session, request, live) {
            findings.statistics.must_arrive_unless_expired += 1;
            return;
        }
        findings.statistics.must_arrive += 1;
        findings.statistics.must_arrive_by_precedence += u64::from(live.is_none());
        let got = &mut self.got[message.0 as usize];
        got.demanded += 1;
        if got.demanded <= got.copies {
            return;
        }
        self.missing.push(message);
        let joined = inside.from.map(|index| self.ledger.place(id, index));
        let acked = request.acked.map(|index| self.ledger.place(request.session, index));
        let until = live.or(precedes).map(|index| self.ledger.place(id, index));
        let proof = joined.into_iter().chain([self.published(request)]);
        let proof = proof.chain(acked.or(request.delivered)).chain(until);
        findings.violation(ViolationKind::Lost, proof, |history| {
            let names = [session.name, request.content.group, message].map(|name| history.text(name));
            format!("{} never got {} in {}", names[0], names[2], names[1])
        });
    }

    /// A publisher that is a member sees its own message before the ack, where both came over one socket.
    fn own_before_ack(&self, findings: &mut Findings<'_>, id: u32, request: &Request, message: Name) {
        let session = &self.ledger.sessions[id as usize];
        let got = self.got[message.0 as usize];
        // Passed over as expired before the ack, it may come later all the same: from a gateway whose clock went back.
        let comparable = request.session == id
            && request.content.ttl_seconds == 0
            && request.acked_on_one_socket
            && session.observes_sockets
            && !session.unordered_callbacks
            && self.ledger.only_request_of(message).is_some();
        let (true, Some(acked), 1..) = (comparable, request.acked, got.copies) else { return };
        findings.statistics.own_before_ack_judged += 1;
        if got.first > acked {
            let evidence =
                [self.published(request), self.ledger.place(id, acked), self.ledger.place(id, got.first)];
            findings.violation(ViolationKind::AckBeforeOwnMessage, evidence, |history| {
                let names = [session.name, message].map(|name| history.text(name));
                format!("{} got the ack of {} before the message", names[0], names[1])
            });
        }
    }

    /// The delivery to this session of a message that certainly was executed after the request.
    fn precedes_a_delivery(&self, request: &Request, message: Name) -> Option<u32> {
        self.ledger.only_request_of(message)?;
        let newest = self.newest[request.stream as usize]?;
        (request.hi < newest.lo).then_some(newest.delivered)
    }

    /// Whether the request was executed early enough for the `quiesced` at `place` to demand it.
    fn settled(&self, request: &Request, place: Place) -> bool {
        let acked = request.acked.map(|index| self.ledger.place(request.session, index));
        acked.into_iter().chain(request.delivered).any(|at| {
            let elsewhere =
                at.recorder != place.recorder && at.index < self.ledger.first_quiesced(at.recorder);
            elsewhere || self.causality.before(at, place)
        })
    }

    fn may_expire(
        &self,
        findings: &Findings<'_>,
        session: &Session,
        request: &Request,
        live: Option<u32>,
    ) -> bool {
        if request.content.ttl_seconds == 0 {
            return false;
        }
        let Some(index) = live else { return true };
        let Event::Quiesced(quiesced) = &findings.history.events(session.recorder)[index as usize] else {
            return true;
        };
        match (request.at_ms, quiesced.at_ms) {
            (Some(from), Some(to)) => {
                to >= from.saturating_add(u64::from(request.content.ttl_seconds) * 1000)
            }
            _ => true,
        }
    }
}
