//! What is known to have happened before what: the order of lines within a recorder, and signals between recorders.
//! Knows nothing of sessions.

use std::collections::HashMap;

use crate::event::Event;
use crate::findings::Findings;
use crate::history::{Name, Place};

/// Per recorder and awaited signal: how many events of each recorder are known to lie before (a vector clock that
/// changes only at awaited signals).
pub(crate) struct Causality {
    steps: Vec<Vec<Step>>,
}

struct Step {
    from: u32,
    before: Vec<u32>,
}

impl Causality {
    pub(crate) fn new(findings: &mut Findings<'_>) -> Self {
        let count = findings.history.recorder_count();
        let mut signalled: HashMap<Name, Vec<u32>> = HashMap::new();
        let mut walkers: Vec<Walker> = (0..count)
            .map(|recorder| Walker { recorder, next: 0, before: vec![0; count as usize] })
            .collect();
        let mut steps: Vec<Vec<Step>> = (0..count).map(|_| Vec::new()).collect();
        let mut moved = true;
        while moved {
            moved = false;
            for (walker, steps) in walkers.iter_mut().zip(&mut steps) {
                moved |= walker.walk(findings, &mut signalled, steps);
            }
        }
        for walker in walkers {
            if (walker.next as usize) < findings.history.events(walker.recorder).len() {
                findings.malformed(
                    walker.place(),
                    "awaits a signal that nobody gives, or that waits for this line",
                );
            }
        }
        Self { steps }
    }

    /// Whether `earlier` is known to have happened before `later`.
    pub(crate) fn before(&self, earlier: Place, later: Place) -> bool {
        if earlier.recorder == later.recorder {
            return earlier.index < later.index;
        }
        let steps = &self.steps[later.recorder as usize];
        let passed = steps.partition_point(|step| step.from <= later.index);
        passed > 0 && earlier.index < steps[passed - 1].before[earlier.recorder as usize]
    }
}

struct Walker {
    recorder: u32,
    next: u32,
    before: Vec<u32>,
}

impl Walker {
    /// Goes on to the end or to a signal that has not been given yet; says whether it came on.
    fn walk(
        &mut self,
        findings: &mut Findings<'_>,
        signalled: &mut HashMap<Name, Vec<u32>>,
        steps: &mut Vec<Step>,
    ) -> bool {
        let history = findings.history;
        let start = self.next;
        for event in &history.events(self.recorder)[start as usize..] {
            match event {
                Event::Signal(signal) => {
                    let mut before = self.before.clone();
                    before[self.recorder as usize] = self.next;
                    if signalled.insert(signal.name, before).is_some() {
                        findings.malformed(self.place(), "this signal was given before");
                    }
                }
                Event::Awaited(signal) => {
                    let Some(before) = signalled.get(&signal.name) else { break };
                    for (mine, theirs) in self.before.iter_mut().zip(before) {
                        *mine = (*mine).max(*theirs);
                    }
                    steps.push(Step { from: self.next, before: self.before.clone() });
                }
                _ => {}
            }
            self.next += 1;
        }
        self.next > start
    }

    fn place(&self) -> Place {
        Place { recorder: self.recorder, index: self.next }
    }
}
