//! Judges what event handlers were called with and told, and what became of their answers. Knows nothing of groups.

use std::collections::HashMap;

use crate::causality::Causality;
use crate::event::{Called, Event, Handled, Message, Notified};
use crate::findings::Findings;
use crate::history::{Name, Place};
use crate::ledger::{Action, Ledger, NONE, Request};
use crate::verdict::ViolationKind;

pub(crate) fn judge(findings: &mut Findings<'_>, ledger: &Ledger, causality: &Causality) {
    let mut judge =
        Judge { ledger, causality, fates: HashMap::new(), reply_of: HashMap::new(), ids: HashMap::new() };
    judge.gather(findings);
    judge.replies(findings);
    if !judge.fates.is_empty() {
        judge.requests(findings);
        judge.overtakings(findings);
    }
    States::judge(findings, ledger);
}

struct Judge<'a> {
    ledger: &'a Ledger,
    causality: &'a Causality,
    /// Per session and message of a user event.
    fates: HashMap<(u32, Name), Fate>,
    /// Which answer gave a reply: session, message, index.
    reply_of: HashMap<Name, (u32, Name, usize)>,
    ids: HashMap<u32, Ids>,
}

/// What happened to a user event.
#[derive(Default)]
struct Fate {
    calls: Vec<Place>,
    answers: Vec<Answer>,
    /// Deliveries of its replies, with the answer that each came from.
    deliveries: Vec<(Place, usize)>,
}

struct Answer {
    at: Place,
    is_success: bool,
    has_reply: bool,
}

/// The ids of a session's events.
#[derive(Default)]
struct Ids {
    of: HashMap<What, (Name, Place)>,
    named: HashMap<Name, (What, Place)>,
}

/// What has an id of its own: all that has one ack id, an event without one, or a system event.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum What {
    AckId(u32),
    Message(Name),
    System(Name),
}

impl Judge<'_> {
    fn gather(&mut self, findings: &mut Findings<'_>) {
        for recorder in 0..findings.history.recorder_count() {
            for (index, event) in (0..).zip(findings.history.events(recorder)) {
                let at = Place { recorder, index };
                match event {
                    Event::Called(e) => self.called(findings, at, e),
                    Event::Handled(e) => self.handled(at, e),
                    Event::Notified(e) => self.notified(findings, at, e),
                    _ => {}
                }
            }
        }
    }

    fn called(&mut self, findings: &mut Findings<'_>, at: Place, e: &Called<Name>) {
        let Some(session) = self.ledger.session_anywhere(e.connection) else { return };
        let request = self.request(session, e.message);
        let asked =
            request.filter(|request| !self.causality.before(at, self.ledger.place(session, request.lo)));
        let Some(request) = asked else {
            return findings.violation(ViolationKind::HandledUnasked, [at], |history| {
                let names = [e.connection, e.message].map(|name| history.text(name));
                format!("{} never sent {}", names[0], names[1])
            });
        };
        let what =
            if request.ack_id == NONE { What::Message(e.message) } else { What::AckId(request.ack_id) };
        self.fates.entry((session, e.message)).or_default().calls.push(at);
        self.id(findings, session, at, what, e.id);
    }

    fn handled(&mut self, at: Place, e: &Handled<Name>) {
        let Some(session) = self.ledger.session_anywhere(e.connection) else { return };
        let answers = &mut self.fates.entry((session, e.message)).or_default().answers;
        if let Some(reply) = e.reply {
            self.reply_of.insert(reply, (session, e.message, answers.len()));
        }
        answers.push(Answer { at, is_success: e.success, has_reply: e.reply.is_some() });
    }

    fn notified(&mut self, findings: &mut Findings<'_>, at: Place, e: &Notified<Name>) {
        let Some(session) = self.ledger.session_anywhere(e.connection) else { return };
        self.id(findings, session, at, What::System(e.name), e.id);
    }

    fn id(&mut self, findings: &mut Findings<'_>, session: u32, at: Place, what: What, id: Name) {
        findings.statistics.event_ids_judged += 1;
        let ids = self.ids.entry(session).or_default();
        let (known, first) = *ids.of.entry(what).or_insert((id, at));
        let (named, other) = *ids.named.entry(id).or_insert((what, at));
        let (kind, first) = if known != id {
            (ViolationKind::EventIdChanged, first)
        } else if named != what {
            (ViolationKind::EventIdReused, other)
        } else {
            return;
        };
        findings.violation(kind, [first, at], |history| {
            let [was, is] = [known, id].map(|id| history.text(id));
            format!("{}: {was}, then {is}", history.text(self.ledger.sessions[session as usize].name))
        });
    }

    /// The request that sent an event.
    fn request(&self, session: u32, message: Name) -> Option<&Request> {
        let mut all = self.ledger.requests_of(message).map(|id| &self.ledger.requests[id as usize]);
        all.find(|request| request.session == session && request.content.action == Action::Event(message))
    }

    /// What each session got of handlers' replies.
    fn replies(&mut self, findings: &mut Findings<'_>) {
        for (id, session) in (0..).zip(&self.ledger.sessions) {
            let events = findings.history.events(session.recorder);
            for index in &session.delivered {
                let Event::Delivered(e) = &events[*index as usize] else { continue };
                if self.ledger.replies.contains(&e.message) {
                    findings.statistics.copies_judged += 1;
                    self.reply(findings, id, self.ledger.place(id, *index), e);
                }
            }
        }
    }

    fn reply(&mut self, findings: &mut Findings<'_>, id: u32, at: Place, e: &Message<Name>) {
        let given = self.reply_of.get(&e.message).filter(|(session, ..)| *session == id);
        let fate = given.and_then(|(session, message, _)| self.fates.get_mut(&(*session, *message)));
        let (Some((.., answer)), Some(fate)) = (given, fate) else {
            return findings.violation(ViolationKind::Phantom, [at], |history| {
                let names = [e.connection, e.message].map(|name| history.text(name));
                format!("{} got the reply {}, which no handler gave to it", names[0], names[1])
            });
        };
        let (first, given) = (fate.deliveries.first().map(|(at, _)| *at), &fate.answers[*answer]);
        fate.deliveries.push((at, *answer));
        let kind = match first {
            Some(_) => ViolationKind::Duplicated,
            None if !given.is_success || self.causality.before(at, given.at) => ViolationKind::Phantom,
            None => return,
        };
        findings.violation(kind, [given.at].into_iter().chain(first).chain([at]), |history| {
            let names = [e.connection, e.message].map(|name| history.text(name));
            format!("{} got the reply {}", names[0], names[1])
        });
    }

    /// Each user event: was it handled before it was executed, and not again, and did the reply come in time?
    fn requests(&self, findings: &mut Findings<'_>) {
        let nothing = Fate::default();
        for request in &self.ledger.requests {
            let Action::Event(message) = request.content.action else { continue };
            let fate = self.fates.get(&(request.session, message)).unwrap_or(&nothing);
            self.handling(findings, request, message, fate);
            self.reply_in_time(findings, request, message, fate);
        }
    }

    fn handling(&self, findings: &mut Findings<'_>, request: &Request, message: Name, fate: &Fate) {
        let acked = request.acked.map(|index| self.ledger.place(request.session, index));
        let text = |history: &crate::History| {
            let name = self.ledger.sessions[request.session as usize].name;
            format!("{}: the event {}", history.text(name), history.text(message))
        };
        if let Some(acked) = acked {
            findings.statistics.handlings_judged += 1;
            if self.successes(fate, acked).next().is_none() {
                let tried = self.ledger.place(request.session, request.lo);
                findings.violation(ViolationKind::ExecutedUnhandled, [tried, acked], text);
            }
        }
        // A success that is in the log is the last.
        let in_log = fate.deliveries.iter().map(|(_, answer)| fate.answers[*answer].at);
        let alone = (request.ack_id == NONE).then(|| fate.calls.first().copied()).flatten();
        for executed in in_log.chain(acked).chain(alone) {
            if let Some(again) = fate.calls.iter().find(|call| self.causality.before(executed, **call)) {
                return findings.violation(ViolationKind::HandledAgain, [executed, *again], text);
            }
        }
    }

    /// Answers that may have made an event executed by then.
    fn successes<'f>(&self, fate: &'f Fate, by: Place) -> impl Iterator<Item = &'f Answer> {
        fate.answers.iter().filter(move |answer| answer.is_success && !self.causality.before(by, answer.at))
    }

    fn reply_in_time(&self, findings: &mut Findings<'_>, request: &Request, message: Name, fate: &Fate) {
        let session = &self.ledger.sessions[request.session as usize];
        let Some(acked) = request.acked.map(|index| self.ledger.place(request.session, index)) else {
            return;
        };
        let mut successes = self.successes(fate, acked).peekable();
        if session.acks_ahead || successes.peek().is_none() || !successes.all(|answer| answer.has_reply) {
            return;
        }
        let first = fate.deliveries.first().map(|(at, _)| *at);
        let text = |history: &crate::History| {
            format!("{}: the reply to {}", history.text(session.name), history.text(message))
        };
        if request.acked_on_one_socket && session.observes_sockets && !session.unordered_callbacks {
            findings.statistics.reply_before_ack_judged += u64::from(first.is_some());
            if let Some(first) = first.filter(|first| first.index > acked.index) {
                return findings.violation(ViolationKind::AckBeforeReply, [acked, first], text);
            }
        }
        let live = session.quiesced.map(|index| self.ledger.place(request.session, index));
        if let Some(live) = live.filter(|live| self.causality.before(acked, *live)) {
            findings.statistics.replies_demanded += 1;
            if first.is_none() {
                findings.violation(ViolationKind::Lost, [acked, live], text);
            }
        }
    }

    /// Requests that were made on one socket, once each: what comes behind an event is executed after its handler has
    /// answered.
    fn overtakings(&self, findings: &mut Findings<'_>) {
        let mut last: HashMap<u32, (Option<u32>, Name)> = HashMap::new();
        for request in &self.ledger.requests {
            let session = &self.ledger.sessions[request.session as usize];
            if !session.observes_sockets || request.socket.is_none() || request.attempts > 1 {
                continue;
            }
            if let Some((socket, event)) = last.get(&request.session)
                && *socket == request.socket
            {
                self.overtaking(findings, *event, request);
            }
            if let Action::Event(message) = request.content.action {
                last.insert(request.session, (request.socket, message));
            }
        }
    }

    fn overtaking(&self, findings: &mut Findings<'_>, event: Name, request: &Request) {
        let Some(Fate { calls, answers, .. }) = self.fates.get(&(request.session, event)) else { return };
        let (Some(called), executed) = (calls.first(), self.executed(request)) else { return };
        findings.statistics.overtakings_judged += u64::from(!executed.is_empty());
        let is_early =
            |executed: &&Place| answers.iter().all(|answer| self.causality.before(**executed, answer.at));
        if let Some(executed) = executed.iter().find(is_early) {
            findings.violation(ViolationKind::EventOvertaken, [*called, *executed], |history| {
                let name = self.ledger.sessions[request.session as usize].name;
                format!("{}: the event {} was overtaken", history.text(name), history.text(event))
            });
        }
    }

    /// Places by which a request was executed, or its handler called.
    fn executed(&self, request: &Request) -> Vec<Place> {
        if let Action::Event(message) = request.content.action {
            let fate = self.fates.get(&(request.session, message));
            return fate.and_then(|fate| fate.calls.first().copied()).into_iter().collect();
        }
        let acked = request.acked.map(|index| self.ledger.place(request.session, index));
        request.delivered.into_iter().chain(acked).collect()
    }
}

/// What handlers have noted about each session. Judged where one recorder sees all about a session's handlers.
struct States {
    recorder: u32,
    /// What the state can be; nothing while nothing is known.
    possible: Vec<Option<Name>>,
    /// The event of which a handler noted a state last, and that state, as long as no later answer takes its place.
    noted: Option<(Name, Name)>,
    last: Place,
}

impl States {
    fn judge(findings: &mut Findings<'_>, ledger: &Ledger) {
        let mut acks = HashMap::new();
        for request in &ledger.requests {
            if let (Action::Event(message), Some(index)) = (request.content.action, request.acked) {
                acks.insert(ledger.place(request.session, index), (request.session, message));
            }
        }
        let mut all: HashMap<u32, Self> = HashMap::new();
        for recorder in 0..findings.history.recorder_count() {
            for (index, event) in (0..).zip(findings.history.events(recorder)) {
                let at = Place { recorder, index };
                let (connection, what) = match event {
                    Event::Called(e) => (e.connection, Line::Seen(e.state)),
                    Event::Notified(e) => (e.connection, Line::Seen(e.state)),
                    Event::Handled(Handled { connection, message, success: true, state, .. }) => {
                        (*connection, Line::Noted(*message, *state))
                    }
                    Event::Acked(e) => match acks.get(&at) {
                        Some((_, message)) => (e.connection, Line::Acked(*message)),
                        None => continue,
                    },
                    _ => continue,
                };
                let Some(session) = ledger.session_anywhere(connection) else { continue };
                let new = Self { recorder, possible: Vec::new(), noted: None, last: at };
                let states = all.entry(session).or_insert(new);
                if states.recorder == recorder {
                    states.take(findings, at, connection, what);
                }
            }
        }
    }

    fn take(&mut self, findings: &mut Findings<'_>, at: Place, connection: Name, line: Line) {
        match line {
            Line::Seen(state) => {
                findings.statistics.states_judged += u64::from(!self.possible.is_empty());
                if !self.possible.is_empty() && !self.possible.contains(&state) {
                    findings.violation(ViolationKind::StateUnfounded, [self.last, at], |history| {
                        let text = |state: &Option<Name>| state.map(|name| history.text(name).to_string());
                        let possible: Vec<_> = self.possible.iter().map(text).collect();
                        let connection = history.text(connection);
                        format!("{connection}: {:?} is none of {possible:?}", text(&state))
                    });
                }
                self.possible = vec![state];
                self.last = at;
            }
            // Whether it is kept, shows later.
            Line::Noted(message, Some(state)) => {
                if !self.possible.is_empty() {
                    self.possible.push(Some(state));
                    self.last = at;
                }
                self.noted = Some((message, state));
            }
            Line::Noted(message, None) => drop(self.noted.take_if(|(noted, _)| *noted == message)),
            Line::Acked(message) => {
                if let Some((_, state)) = self.noted.filter(|(noted, _)| *noted == message) {
                    self.possible = vec![Some(state)];
                    self.last = at;
                }
            }
        }
    }
}

/// What says something of a session's state.
enum Line {
    Seen(Option<Name>),
    Noted(Name, Option<Name>),
    Acked(Name),
}
