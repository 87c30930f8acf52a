//! Everything under one ack id of one connection: its tries and their answers, and whether the answers can be true.
//! Knows nothing of groups or deliveries.

use crate::verdict::ViolationKind;

/// One ack id of one connection.
#[derive(Default)]
pub(crate) struct AckId {
    /// The first request under it.
    pub(crate) first: u32,
    /// How many different requests are under it.
    pub(crate) contents: u32,
    /// Tries of all of them.
    pub(crate) attempts: u32,
    /// The request of which an ack said beyond doubt that it was executed.
    pub(crate) executed: Option<u32>,
    /// The socket on which all tries so far were made.
    pub(crate) socket: Option<u32>,
    on_last_socket: OneSocket,
    refused: u32,
    uncertain: u32,
    successes: u32,
    duplicates: u32,
}

/// The tries on one socket, and the acks that came over it since the first of them.
#[derive(Default)]
struct OneSocket {
    socket: u32,
    tries: u32,
    answers: u32,
}

/// What an ack says.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Success,
    Duplicate,
    /// `PayloadMismatch`: not executed, since the ack id belongs to another request.
    Mismatch,
    /// Certainly not executed.
    Refused,
    /// Perhaps executed.
    Uncertain,
}

impl AckId {
    /// An ack id that is about to be used first, on `socket`, for the request `first`.
    pub(crate) fn new(first: u32, socket: Option<u32>) -> Self {
        Self { first, socket, ..Default::default() }
    }

    /// Whether every try so far is known to have had no effect, so that only a later one can have any.
    pub(crate) fn all_refused(&self) -> bool {
        self.refused == self.attempts
    }

    /// Notes a try over `socket`.
    pub(crate) fn tried_on(&mut self, socket: u32) {
        if self.on_last_socket.socket != socket {
            self.on_last_socket = OneSocket { socket, ..Default::default() };
        }
        self.on_last_socket.tries += 1;
    }

    /// Notes an ack that came over the connection's current socket.
    pub(crate) fn answered(&mut self) {
        self.on_last_socket.answers += 1;
    }

    /// Whether a try on the last socket certainly got no answer.
    pub(crate) fn lacks_answer(&self) -> bool {
        self.on_last_socket.answers < self.on_last_socket.tries
    }

    /// Takes an answer into account and says which promise it breaks. `tries_max` is how many tries there were of the
    /// request that can have been executed: of the executed one where it is known, else the most of any.
    pub(crate) fn answer(&mut self, answer: Answer, tries_max: u32) -> Option<ViolationKind> {
        let answered = self.refused + self.uncertain + self.successes + self.duplicates;
        if answered >= self.attempts {
            return Some(ViolationKind::AckUnrequested);
        }
        let alone = self.contents == 1;
        match answer {
            Answer::Success => {
                self.successes += 1;
                if self.successes + self.duplicates > 1 {
                    return Some(if alone {
                        ViolationKind::SuccessRepeated
                    } else {
                        ViolationKind::MismatchAccepted
                    });
                }
            }
            Answer::Duplicate => {
                self.duplicates += 1;
                if self.refused + self.duplicates >= self.attempts {
                    return Some(ViolationKind::DuplicateOfNothing);
                }
                if self.duplicates >= tries_max {
                    return Some(ViolationKind::MismatchAccepted);
                }
            }
            Answer::Mismatch => {
                self.refused += 1;
                if alone {
                    return Some(ViolationKind::MismatchUnfounded);
                }
            }
            Answer::Refused => self.refused += 1,
            Answer::Uncertain => self.uncertain += 1,
        }
        if alone && matches!(answer, Answer::Success | Answer::Duplicate) {
            self.executed.get_or_insert(self.first);
        }
        None
    }
}
