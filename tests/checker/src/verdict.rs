//! What [`crate::check`] answers: violations with their proof, complaints about recorders, and counts.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::event::Event;
use crate::statistics::Statistics;

/// How many violations of one kind, and how many malformed lines, a [`Verdict`] keeps; all are counted.
pub const KEPT_PER_KIND_MAX: usize = 100;

/// How many violations the text of a [`Verdict`] shows.
pub const SHOWN_MAX: usize = 20;

/// The judgement of a history.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Verdict {
    /// The broken promises: the first [`KEPT_PER_KIND_MAX`] of each kind.
    pub violations: Vec<Violation>,
    /// How many there are of each kind that occurs.
    pub violation_counts: BTreeMap<ViolationKind, u64>,
    /// Lines that contradict the format's rules: the recorder's fault, and the judgement can't be relied on.
    pub malformed: Vec<Malformed>,
    /// How many malformed lines there are.
    pub malformed_count: u64,
    /// What was seen, and how often each check really applied.
    pub statistics: Statistics,
}

impl Verdict {
    /// Whether nothing is wrong with the service or with the history.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.violation_counts.is_empty() && self.malformed_count == 0
    }

    /// How many violations of a kind there are.
    #[must_use]
    pub fn count(&self, kind: ViolationKind) -> u64 {
        self.violation_counts.get(&kind).copied().unwrap_or(0)
    }
}

/// One broken promise.
#[derive(Clone, Debug, Serialize)]
pub struct Violation {
    /// Which promise.
    pub kind: ViolationKind,
    /// One line for the reader.
    pub message: String,
    /// The events that prove it.
    pub evidence: Vec<Evidence>,
}

/// An event and where it stands.
#[derive(Clone, Debug, Serialize)]
pub struct Evidence {
    /// The recorder's name.
    pub recorder: String,
    /// The line, from 1.
    pub line: u32,
    /// What the line says.
    pub event: Event,
}

/// A line that its recorder should not have written.
#[derive(Clone, Debug, Serialize)]
pub struct Malformed {
    /// The line.
    pub at: Evidence,
    /// What is wrong with it.
    pub message: String,
}

/// The promises that can be broken.
///
/// Terms: a message is *executed* when an ack says so (success, or `Duplicate` after an own earlier try) or when
/// somebody got it. A session is *certainly a member* from the ack of its join until it next asks to leave, and
/// *certainly not a member* until it first asks to join and from the ack of a leave until it next asks to join.
/// Requests that are in flight together, or are sent again, leave both open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ViolationKind {
    /// An executed message never came to a session that certainly was a member from before it was first sent until
    /// after it was executed, and that was attached at `quiesced`, or got a later message of the same publisher to
    /// the same group.
    Lost,
    /// A session got a message more often than it was requested.
    Duplicated,
    /// A session got two messages of one publisher to one group in the wrong order, although no try of the first
    /// could have been executed after one of the second.
    OutOfOrder,
    /// A session got a message that nobody published, or published to another group, or published only afterwards.
    Phantom,
    /// A session got a message of which every try was definitely refused, or whose ack id had been used up by another
    /// request.
    RefusedDelivered,
    /// A session got a message that was published in another hub.
    HubCrossed,
    /// A session got a message that was executed before it first asked to join the group, or without asking ever.
    NotMember,
    /// A session got a message that was first sent after its leave had been acked.
    AfterLeave,
    /// A publisher got its own message in spite of `no_echo`.
    Echo,
    /// A reliable session got a message without a sequence id.
    SequenceIdMissing,
    /// A session that isn't reliable got a message with a sequence id.
    SequenceIdUnexpected,
    /// A sequence id is 0.
    SequenceIdZero,
    /// A sequence id is 2^53 or more, which JavaScript can't represent.
    SequenceIdTooLarge,
    /// A sequence id is not above the one before, at the application or on one socket.
    SequenceIdNotIncreasing,
    /// A sequence id named one message and later another.
    SequenceIdRenamed,
    /// A sequence id came for the first time after larger ones had come: a client that drops what it has passed loses
    /// that message.
    SequenceIdInGap,
    /// After a resume, a message that the client had got but not acknowledged was passed over.
    RedeliverySkipped,
    /// An ack came for an ack id that nobody used, or more acks than tries.
    AckUnrequested,
    /// A request was reported as a success although an ack had already said that it was executed.
    SuccessRepeated,
    /// A `Duplicate` came although no other try of the request could have been executed.
    DuplicateOfNothing,
    /// An ack id was used for different requests, and a second one was answered success or `Duplicate`.
    MismatchAccepted,
    /// A `PayloadMismatch` came although the ack id was used for one request only.
    MismatchUnfounded,
    /// A request got no ack on the socket on which it was made last, although that socket was open until `quiesced`.
    Unanswered,
    /// On one socket, a request was acked before an earlier one.
    AckOutOfOrder,
    /// A publisher that certainly was a member got its own message only after the message's ack, on one socket.
    AckBeforeOwnMessage,
    /// A session was resumed after the service had ended it.
    ResumedAfterClose,
    /// An event handler was called with an event that nobody had sent.
    HandledUnasked,
    /// An event was executed although no call of its handler had succeeded.
    ExecutedUnhandled,
    /// An event handler was called with an event that had been executed, or that is sent only once, again.
    HandledAgain,
    /// On one socket, an event was acked before the reply of its handler came.
    AckBeforeReply,
    /// A request was executed although the handler of an event before it on the same socket had not answered.
    EventOvertaken,
    /// A handler was told of another state than handlers had noted last.
    StateUnfounded,
    /// An event came to its handler under two ids.
    EventIdChanged,
    /// Two events of a session had one id.
    EventIdReused,
}

impl ViolationKind {
    /// All kinds.
    pub const ALL: [Self; 34] = [
        Self::Lost,
        Self::Duplicated,
        Self::OutOfOrder,
        Self::Phantom,
        Self::RefusedDelivered,
        Self::HubCrossed,
        Self::NotMember,
        Self::AfterLeave,
        Self::Echo,
        Self::SequenceIdMissing,
        Self::SequenceIdUnexpected,
        Self::SequenceIdZero,
        Self::SequenceIdTooLarge,
        Self::SequenceIdNotIncreasing,
        Self::SequenceIdRenamed,
        Self::SequenceIdInGap,
        Self::RedeliverySkipped,
        Self::AckUnrequested,
        Self::SuccessRepeated,
        Self::DuplicateOfNothing,
        Self::MismatchAccepted,
        Self::MismatchUnfounded,
        Self::Unanswered,
        Self::AckOutOfOrder,
        Self::AckBeforeOwnMessage,
        Self::ResumedAfterClose,
        Self::HandledUnasked,
        Self::ExecutedUnhandled,
        Self::HandledAgain,
        Self::AckBeforeReply,
        Self::EventOvertaken,
        Self::StateUnfounded,
        Self::EventIdChanged,
        Self::EventIdReused,
    ];
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for violation in self.violations.iter().take(SHOWN_MAX) {
            writeln!(f, "{violation}")?;
        }
        let total: u64 = self.violation_counts.values().sum();
        if total > SHOWN_MAX as u64 {
            writeln!(f, "... and {} more", total - SHOWN_MAX as u64)?;
        }
        for malformed in self.malformed.iter().take(SHOWN_MAX) {
            writeln!(f, "malformed: {}\n    {}", malformed.message, malformed.at)?;
        }
        write!(f, "{}", self.statistics)?;
        for (kind, count) in &self.violation_counts {
            writeln!(f, "violations of {kind:?}: {count}")?;
        }
        match (self.malformed_count, total) {
            (0, 0) => writeln!(f, "verdict: ok"),
            (0, _) => writeln!(f, "verdict: {total} violations"),
            (bad, _) => writeln!(f, "verdict: {bad} malformed lines, {total} violations"),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)?;
        self.evidence.iter().try_for_each(|evidence| write!(f, "\n    {evidence}"))
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let event = serde_json::to_string(&self.event).map_err(|_| fmt::Error)?;
        write!(f, "{}:{}: {event}", self.recorder, self.line)
    }
}
