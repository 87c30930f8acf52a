//! Choosing whom a selection means, in portions.
//!
//! Which sessions a record is for is found before it takes effect, and found again by nobody: while it is being found the
//! records behind it wait, so that nothing changes that a selection asks about. What is no record (sockets, timers,
//! questions) is served between the portions; it sees the hub as it was before the record, which has not come yet.

use std::collections::BTreeSet;
use std::hash::{BuildHasherDefault, DefaultHasher};

use indexmap::IndexMap;

use super::{SessionKey, Shard};
use crate::filter::{Filter, Narrowed, SUBJECTS_MAX, bits};
use crate::log::{Audience, Selection};
use crate::session::Session;

/// Sessions whose memberships are looked up together; a multiple of [`SUBJECTS_MAX`]. A group's members are gone through
/// once for each, and of a filter that names a thousand groups each takes 128 bytes.
const WINDOW_SESSIONS: usize = 16 * 1024;

/// See the module.
#[derive(Debug)]
pub struct Choosing {
    filter: Option<Filter>,
    candidates: Vec<SessionKey>,
    /// Candidates that have been looked at.
    looked_at: usize,
    window: Window,
    chosen: Vec<SessionKey>,
}

/// Some candidates, with the memberships that the filter asks for.
#[derive(Debug, Default)]
struct Window {
    end: usize,
    /// Where in the window a candidate is.
    places: IndexMap<SessionKey, usize, BuildHasherDefault<DefaultHasher>>,
    /// Groups that have been looked up.
    groups: usize,
    /// Who is in which group: for each [`SUBJECTS_MAX`] candidates a word for each group.
    members: Vec<u64>,
}

impl Choosing {
    /// Nobody has been looked at. Finding the candidates takes a step for each, all at once.
    pub fn new(shard: &Shard, selection: &Selection, steps: &mut usize) -> Self {
        let filter = selection.filter.clone();
        let mut candidates = shard.candidates(&selection.audience, filter.as_ref());
        *steps = steps.saturating_sub(candidates.len());
        if !selection.excluded.is_empty() {
            let keys = selection.excluded.iter().filter_map(|id| shard.by_connection_id.get(id));
            let excluded: BTreeSet<SessionKey> = keys.copied().collect();
            candidates.retain(|key| !excluded.contains(key));
        }
        Self { filter, candidates, looked_at: 0, window: Window::default(), chosen: Vec::new() }
    }

    /// Goes on until all have been looked at or no steps are left; tells whether all have been.
    pub fn go_on(&mut self, shard: &Shard, steps: &mut usize) -> bool {
        let Some(filter) = &self.filter else {
            self.chosen = std::mem::take(&mut self.candidates);
            return true;
        };
        let groups = filter.groups().len();
        let mut subjects: Vec<&Session> = Vec::with_capacity(SUBJECTS_MAX);
        while self.looked_at < self.candidates.len() {
            if *steps == 0 {
                return false;
            }
            if self.looked_at == self.window.end {
                self.window.begin(&self.candidates, self.looked_at, groups);
            }
            if let Some(group) = filter.group(self.window.groups) {
                let spent = self.window.look_up(shard, group, groups);
                *steps = steps.saturating_sub(spent);
                continue;
            }
            let end = self.window.end.min(self.looked_at + SUBJECTS_MAX);
            let keys = &self.candidates[self.looked_at..end];
            subjects.clear();
            subjects.extend(keys.iter().map(|key| &shard.sessions[*key]));
            let (selected, spent) = filter.select(&subjects, self.window.members_of(self.looked_at, groups));
            self.chosen.extend(bits(selected).map(|at| keys[at]));
            self.looked_at = end;
            *steps = steps.saturating_sub(spent);
        }
        true
    }

    /// Who was chosen, each once, in an order that is the same in every fold.
    pub fn chosen(self) -> Vec<SessionKey> {
        self.chosen
    }
}

impl Window {
    fn begin(&mut self, candidates: &[SessionKey], from: usize, groups: usize) {
        self.end = candidates.len().min(from + WINDOW_SESSIONS);
        self.groups = 0;
        self.places.clear();
        self.members.clear();
        if groups > 0 {
            let here = &candidates[from..self.end];
            self.places.extend(here.iter().enumerate().map(|(place, key)| (*key, place)));
            self.members.resize(here.len().div_ceil(SUBJECTS_MAX) * groups, 0);
        }
    }

    /// Looks up who is in the next group: goes through its members or through the candidates, whichever are fewer. Returns
    /// the steps that it took.
    fn look_up(&mut self, shard: &Shard, group: &str, groups: usize) -> usize {
        let at = self.groups;
        self.groups += 1;
        let Some(members) = shard.groups.get(group) else { return 1 };
        let words = &mut self.members;
        let mut join = |place: usize| {
            words[place / SUBJECTS_MAX * groups + at] |= 1 << (place % SUBJECTS_MAX);
        };
        if members.len() < self.places.len() {
            members.keys().filter_map(|key| self.places.get(key)).for_each(|place| join(*place));
        } else {
            let here = self.places.iter().filter(|(key, _)| members.contains_key(*key));
            here.for_each(|(_, place)| join(*place));
        }
        1 + members.len().min(self.places.len())
    }

    /// The words of the candidates from this one of all on.
    fn members_of(&self, looked_at: usize, groups: usize) -> &[u64] {
        let begin = self.end.saturating_sub(self.places.len());
        let from = looked_at.saturating_sub(begin) / SUBJECTS_MAX * groups;
        self.members.get(from..from + groups).unwrap_or_default()
    }
}

impl Shard {
    /// The sessions of an audience, without those that a filter can't select where that is known beforehand: each once, in
    /// an order that is the same in every fold.
    fn candidates(&self, audience: &Audience, filter: Option<&Filter>) -> Vec<SessionKey> {
        match audience {
            Audience::All => match filter.and_then(Filter::narrowed) {
                Some(narrowed) => self.narrowed(&narrowed),
                None => self.by_connection_id.values().copied().collect(),
            },
            Audience::Group(group) => {
                self.groups.get(group).into_iter().flatten().map(|(key, _)| *key).collect()
            }
            Audience::User(user_id) => self.users.get(user_id).into_iter().flatten().copied().collect(),
            Audience::Connection(id) => self.by_connection_id.get(id).copied().into_iter().collect(),
        }
    }

    /// Those that are found there, each once.
    fn narrowed(&self, narrowed: &[Narrowed<'_>]) -> Vec<SessionKey> {
        let mut keys = Vec::new();
        for narrowed in narrowed {
            match *narrowed {
                Narrowed::Connection(id) => keys.extend(self.by_connection_id.get(id)),
                Narrowed::User(user_id) => keys.extend(self.users.get(user_id).into_iter().flatten()),
                Narrowed::Group(group) => {
                    keys.extend(self.groups.get(group).into_iter().flat_map(|members| members.keys()));
                }
            }
            if keys.len() > self.sessions.len() {
                // Some are there several times: going through all is no more.
                return self.by_connection_id.values().copied().collect();
            }
        }
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// How many sessions a selection may select at most.
    pub(super) fn count_candidates(&self, selection: &Selection) -> usize {
        self.candidates(&selection.audience, selection.filter.as_ref()).len()
    }

    /// How many sessions are selected.
    pub(super) fn count_selected(&self, selection: &Selection) -> usize {
        self.selected_of(selection, |_| true).len()
    }

    /// Whether some of the selected sessions are like this. The filter is asked only about those that are.
    pub(super) fn has_selected(&self, selection: &Selection, is_one: impl Fn(SessionKey) -> bool) -> bool {
        !self.selected_of(selection, is_one).is_empty()
    }

    fn selected_of(&self, selection: &Selection, is_one: impl Fn(SessionKey) -> bool) -> Vec<SessionKey> {
        let mut steps = usize::MAX;
        let mut choosing = Choosing::new(self, selection, &mut steps);
        choosing.candidates.retain(|key| is_one(*key));
        while !choosing.go_on(self, &mut steps) {
            steps = usize::MAX;
        }
        choosing.chosen
    }
}
