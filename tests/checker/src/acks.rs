//! Everything under one ack id of one connection: its tries and their answers, and whether the answers can be true. Knows nothing
//! of groups or deliveries.

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
    refused: u32,
    uncertain: u32,
    successes: u32,
    duplicates: u32,
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

    /// Takes an answer into account and says which promise it breaks. `tries_max` is how many tries there were of the request
    /// that can have been executed: of the executed one where it is known, else the most of any.
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
