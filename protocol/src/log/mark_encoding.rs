//! How records store sequence acks.

use super::checkpoint_encoding::{differences, sums};
use super::{Body, Offset, RecordError, SequenceMark};

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StoredAcked {
    /// Sessions' numbers, each as its difference from the one before.
    #[prost(uint64, repeated, tag = "1")]
    sessions: Vec<u64>,
    #[prost(uint64, repeated, tag = "2")]
    sequence_ids: Vec<u64>,
}

impl StoredAcked {
    pub(super) fn new(marks: &[SequenceMark]) -> Self {
        Self {
            sessions: differences(marks.iter().map(|mark| mark.session.0)),
            sequence_ids: marks.iter().map(|mark| mark.sequence_id).collect(),
        }
    }
}

impl TryFrom<StoredAcked> for Body {
    type Error = RecordError;

    fn try_from(stored: StoredAcked) -> Result<Self, RecordError> {
        if stored.sessions.is_empty() || stored.sessions.len() != stored.sequence_ids.len() {
            return Err(RecordError::Invalid("list of marks"));
        }
        let marks = sums(&stored.sessions).zip(&stored.sequence_ids);
        let marks = marks.map(|(session, id)| SequenceMark { session: Offset(session), sequence_id: *id });
        Ok(Self::Acked { marks: marks.collect() })
    }
}
