//! Collects what the judges find, within bounds.

use crate::history::{History, Place};
use crate::statistics::Statistics;
use crate::verdict::{Evidence, KEPT_PER_KIND_MAX, Malformed, Verdict, Violation, ViolationKind};

/// A verdict in the making.
pub(crate) struct Findings<'a> {
    pub(crate) history: &'a History,
    pub(crate) statistics: Statistics,
    verdict: Verdict,
}

impl<'a> Findings<'a> {
    pub(crate) fn new(history: &'a History) -> Self {
        Self { history, statistics: Statistics::default(), verdict: Verdict::default() }
    }

    pub(crate) fn violation(
        &mut self,
        kind: ViolationKind,
        evidence: impl IntoIterator<Item = Place>,
        message: impl FnOnce(&History) -> String,
    ) {
        let count = self.verdict.violation_counts.entry(kind).or_default();
        *count += 1;
        if *count <= KEPT_PER_KIND_MAX as u64 {
            let evidence = evidence.into_iter().map(|at| self.quote(at)).collect();
            self.verdict.violations.push(Violation { kind, message: message(self.history), evidence });
        }
    }

    pub(crate) fn malformed(&mut self, at: Place, message: &str) {
        self.verdict.malformed_count += 1;
        if self.verdict.malformed_count <= KEPT_PER_KIND_MAX as u64 {
            let at = self.quote(at);
            self.verdict.malformed.push(Malformed { at, message: message.to_string() });
        }
    }

    pub(crate) fn into_verdict(self) -> Verdict {
        Verdict { statistics: self.statistics, ..self.verdict }
    }

    fn quote(&self, at: Place) -> Evidence {
        let (recorder, line, event) = self.history.quote(at);
        Evidence { recorder, line, event }
    }
}
