//! The groups that a session is in, with what their names take.

use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::ops::Deref;

use crate::wire::limits::GROUP_NAMES_BYTES_MAX;
use crate::wire::{GroupName, allocated};

/// What a membership takes in memory beside the group's name, in bytes, about: the name's allocation, its place here and
/// the session's place in the group.
pub const MEMBERSHIP_BYTES: usize = allocated(96);

/// See the module. The names' bytes are counted as they change: a look at all of them would cost a session in many groups
/// more for each join than one in few (R15).
#[derive(Debug, Clone, Default)]
pub struct Memberships {
    names: BTreeSet<GroupName>,
    name_bytes: usize,
}

impl Memberships {
    /// Joins a group; tells whether it is new.
    pub fn insert(&mut self, group: GroupName) -> bool {
        let bytes = group.as_str().len();
        let is_new = self.names.insert(group);
        self.name_bytes += if is_new { bytes } else { 0 };
        is_new
    }

    /// Leaves a group; tells whether it was there.
    pub fn remove(&mut self, group: &GroupName) -> bool {
        let was_there = self.names.remove(group);
        self.name_bytes -= if was_there { group.as_str().len() } else { 0 };
        was_there
    }

    /// Those of its groups that are named. The shorter of both lists is looked through.
    pub fn among<'a, N: Borrow<GroupName> + Ord>(&'a self, named: &'a BTreeSet<N>) -> Vec<&'a GroupName> {
        if self.names.len() < named.len() {
            self.names.iter().filter(|group| named.contains::<GroupName>(group)).collect()
        } else {
            named.iter().map(Borrow::borrow).filter(|group| self.names.contains::<GroupName>(group)).collect()
        }
    }

    /// What the names take, in bytes.
    pub fn name_bytes(&self) -> usize {
        self.name_bytes
    }

    /// About what the memberships take in memory, in bytes, the hub's index of its groups included.
    pub fn memory_bytes(&self) -> usize {
        self.name_bytes + self.names.len() * MEMBERSHIP_BYTES
    }
}

impl Deref for Memberships {
    type Target = BTreeSet<GroupName>;

    fn deref(&self) -> &Self::Target {
        &self.names
    }
}

impl FromIterator<GroupName> for Memberships {
    fn from_iter<I: IntoIterator<Item = GroupName>>(groups: I) -> Self {
        let names: BTreeSet<_> = groups.into_iter().collect();
        let name_bytes = group_name_bytes(names.iter());
        Self { names, name_bytes }
    }
}

/// Bytes of groups' names; at most [`GROUP_NAMES_BYTES_MAX`] for the groups of one session.
pub fn group_name_bytes<'a>(groups: impl Iterator<Item = &'a GroupName>) -> usize {
    groups.map(|group| group.as_str().len()).sum()
}

/// Whether a session may be in these groups, of which each is there once.
pub fn may_be_in<'a>(groups: impl ExactSizeIterator<Item = &'a GroupName>, groups_max: usize) -> bool {
    groups.len() <= groups_max && group_name_bytes(groups) <= GROUP_NAMES_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_names_bytes_are_those_of_the_names(
            first in vec("[a-c]{1,3}", 0..4),
            steps in vec(("[a-c]{1,3}", any::<bool>()), 0..40),
        ) {
            let group = |name: &String| GroupName::new(name).unwrap();
            let mut memberships: Memberships = first.iter().map(group).collect();
            for (name, is_join) in &steps {
                if *is_join { memberships.insert(group(name)) } else { memberships.remove(&group(name)) };
                prop_assert_eq!(memberships.name_bytes(), group_name_bytes(memberships.iter()));
            }
        }
    }
}
