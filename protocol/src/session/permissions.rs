//! What a session may do with which group.
//!
//! Roles come from the access token. Literal rules granted or revoked at run time decide first; then a literal role,
//! a role for all groups or a wildcard pattern may allow.

use std::collections::BTreeMap;

use super::group_name_bytes;
use crate::log::{Permission, RulesCheckpoint};
use crate::wire::limits::{
    PATTERN_ASTERISKS_MAX, PATTERN_CHARS_MAX, PERMISSION_LITERALS_MAX, PERMISSION_PATTERNS_MAX,
};
use crate::wire::{GroupName, allocated};

/// Why a rule could not be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PermissionError {
    /// The session already has [`PERMISSION_LITERALS_MAX`] literal rules for this permission.
    #[error("the connection has {PERMISSION_LITERALS_MAX} literal rules for this permission")]
    TooManyRules,
}

/// A session's rules for both permissions.
#[derive(Debug, Default)]
pub struct Permissions {
    join_leave: Rules,
    send: Rules,
}

#[derive(Debug, Default)]
struct Rules {
    all: bool,
    /// Most sessions have none of these.
    of_groups: Option<Box<GroupRules>>,
}

/// Rules that are not for all groups.
#[derive(Debug, Default)]
struct GroupRules {
    patterns: Vec<Pattern>,
    /// `true` allows, `false` denies.
    literals: BTreeMap<GroupName, bool>,
    /// Bytes of the names in them.
    name_bytes: usize,
}

/// What a literal rule takes in memory beside its group's name, in bytes, about.
const LITERAL_BYTES: usize = allocated(2 * size_of::<(GroupName, bool)>());

impl Permissions {
    /// Reads roles. Unknown roles, and patterns that are invalid or too many, grant nothing; the roles are taken in
    /// sorted order so that the choice among too many does not depend on the token's.
    pub fn from_roles(roles: &[String]) -> Self {
        let mut permissions = Self::default();
        let mut sorted: Vec<&str> = roles.iter().map(String::as_str).collect();
        sorted.sort_unstable();
        for role in sorted {
            let Some(name) = role.strip_prefix("webpubsub.") else { continue };
            if let Some(target) = name.strip_prefix("joinLeaveGroup") {
                permissions.join_leave.add_role(target);
            } else if let Some(target) = name.strip_prefix("sendToGroup") {
                permissions.send.add_role(target);
            }
        }
        permissions
    }

    /// Whether a role grants anything.
    pub fn is_role(role: &str) -> bool {
        let Self { join_leave, send } = Self::from_roles(&[role.to_owned()]);
        let grants = |rules: &Rules| rules.all || rules.of_groups.is_some();
        grants(&join_leave) || grants(&send)
    }

    /// The rules of one permission as a checkpoint keeps them.
    pub fn to_checkpoint(&self, permission: Permission) -> RulesCheckpoint {
        let rules = self.rules(permission);
        let literals = |allow: bool| {
            let of_kind = rules.literals().filter(move |(_, allows)| **allows == allow);
            of_kind.map(|(group, _)| group.clone()).collect()
        };
        RulesCheckpoint {
            all: rules.all,
            patterns: rules.patterns().iter().map(ToString::to_string).collect(),
            allowed: literals(true),
            denied: literals(false),
        }
    }

    /// The rules that a checkpoint kept. A pattern that is none grants nothing.
    pub fn restore(join_leave: RulesCheckpoint, send: RulesCheckpoint) -> Self {
        Self { join_leave: Rules::restore(join_leave), send: Rules::restore(send) }
    }

    /// Whether the session may do this with the group now.
    pub fn allows(&self, permission: Permission, group: &GroupName) -> bool {
        self.rules(permission).allow(group)
    }

    /// Whether a grant or revocation keeps within the bound on literal rules. Each of the pending changes of the
    /// permission, those whose records are not applied yet, is taken to add a rule.
    pub fn check_change(
        &self,
        permission: Permission,
        group: &GroupName,
        allow: bool,
        pending: usize,
    ) -> Result<(), PermissionError> {
        let rules = self.rules(permission);
        let adds_a_rule = rules.literal(group).is_none() && rules.allow(group) != allow;
        if adds_a_rule && rules.literals().len() + pending >= PERMISSION_LITERALS_MAX {
            return Err(PermissionError::TooManyRules);
        }
        Ok(())
    }

    /// Allows a group: takes a denial away and, where that is not enough, adds a literal rule.
    pub fn grant(&mut self, permission: Permission, group: &GroupName) {
        self.rules_mut(permission).set(group, true);
    }

    /// Forbids a group: takes a literal rule away and, where a role still allows it, adds a denial.
    pub fn revoke(&mut self, permission: Permission, group: &GroupName) {
        self.rules_mut(permission).set(group, false);
    }

    /// About what the rules take in memory, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.join_leave.memory_bytes() + self.send.memory_bytes()
    }

    fn rules(&self, permission: Permission) -> &Rules {
        match permission {
            Permission::JoinLeaveGroup => &self.join_leave,
            Permission::SendToGroup => &self.send,
        }
    }

    fn rules_mut(&mut self, permission: Permission) -> &mut Rules {
        match permission {
            Permission::JoinLeaveGroup => &mut self.join_leave,
            Permission::SendToGroup => &mut self.send,
        }
    }
}

impl Rules {
    fn restore(stored: RulesCheckpoint) -> Self {
        let allowed = stored.allowed.into_iter().map(|group| (group, true));
        let denied = stored.denied.into_iter().map(|group| (group, false));
        let literals: BTreeMap<GroupName, bool> = allowed.chain(denied).collect();
        let of_groups = GroupRules {
            patterns: stored.patterns.iter().filter_map(|text| Pattern::parse(text)).collect(),
            name_bytes: group_name_bytes(literals.keys()),
            literals,
        };
        let is_empty = of_groups.patterns.is_empty() && of_groups.literals.is_empty();
        Self { all: stored.all, of_groups: (!is_empty).then(|| Box::new(of_groups)) }
    }

    fn memory_bytes(&self) -> usize {
        self.of_groups.as_ref().map_or(0, |rules| {
            let patterns: usize = rules.patterns.iter().map(|pattern| size_of_val(&*pattern.0)).sum();
            size_of::<GroupRules>() + patterns + rules.name_bytes + rules.literals.len() * LITERAL_BYTES
        })
    }

    fn patterns(&self) -> &[Pattern] {
        self.of_groups.as_ref().map_or(&[], |rules| &rules.patterns)
    }

    fn literals(&self) -> impl ExactSizeIterator<Item = (&GroupName, &bool)> {
        static NONE: BTreeMap<GroupName, bool> = BTreeMap::new();
        self.of_groups.as_ref().map_or(&NONE, |rules| &rules.literals).iter()
    }

    fn literal(&self, group: &GroupName) -> Option<bool> {
        self.of_groups.as_ref()?.literals.get(group).copied()
    }

    /// Takes what follows `joinLeaveGroup` or `sendToGroup` in a role.
    fn add_role(&mut self, target: &str) {
        if target.is_empty() {
            self.all = true;
        } else if let Some(pattern) = target.strip_prefix("s.") {
            if self.patterns().len() < PERMISSION_PATTERNS_MAX
                && let Some(pattern) = Pattern::parse(pattern)
            {
                self.of_groups.get_or_insert_default().patterns.push(pattern);
            }
        } else if let Some(literal) = target.strip_prefix('.')
            && self.literals().len() < PERMISSION_LITERALS_MAX
            && let Ok(group) = GroupName::new(literal)
        {
            self.insert(group, true);
        }
    }

    fn insert(&mut self, group: GroupName, allow: bool) {
        let bytes = group.as_str().len();
        let rules = self.of_groups.get_or_insert_default();
        if rules.literals.insert(group, allow).is_none() {
            rules.name_bytes += bytes;
        }
    }

    fn allow(&self, group: &GroupName) -> bool {
        self.literal(group).unwrap_or_else(|| self.roles_allow(group))
    }

    fn roles_allow(&self, group: &GroupName) -> bool {
        self.all || self.patterns().iter().any(|pattern| pattern.matches(group.as_str()))
    }

    fn set(&mut self, group: &GroupName, allow: bool) {
        if let Some(rules) = &mut self.of_groups
            && rules.literals.remove(group).is_some()
        {
            rules.name_bytes -= group.as_str().len();
        }
        if self.roles_allow(group) != allow {
            self.insert(group.clone(), allow);
        }
    }
}

/// A wildcard pattern over group names: `?` one character but a dot, `*` any number of them, `**` dots too, a
/// backslash before `*`, `?` or itself for the literal character.
#[derive(Debug)]
struct Pattern(Vec<Token>);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Token {
    Literal(char),
    OneNotDot,
    ManyNotDot,
    Many,
}

impl Pattern {
    fn parse(text: &str) -> Option<Self> {
        if text.is_empty() || text.chars().count() > PATTERN_CHARS_MAX {
            return None;
        }
        let mut tokens = Vec::new();
        let mut asterisks = 0;
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            tokens.push(match c {
                '\\' => Token::Literal(chars.next().filter(|escaped| "*?\\".contains(*escaped))?),
                '?' => Token::OneNotDot,
                '*' => {
                    let mut run = 1;
                    while chars.next_if_eq(&'*').is_some() {
                        run += 1;
                    }
                    asterisks += run;
                    if run == 1 { Token::ManyNotDot } else { Token::Many }
                }
                literal => Token::Literal(literal),
            });
        }
        (asterisks <= PATTERN_ASTERISKS_MAX).then_some(Self(tokens))
    }

    /// Whether a name begins and ends as the pattern does up to its first and from its last wildcard. Most names that a pattern
    /// does not match are told by that.
    fn has_ends_of(&self, name: &str) -> bool {
        let is_alike = |(token, c): (&Token, char)| match token {
            Token::Literal(literal) => Some(*literal == c),
            Token::OneNotDot | Token::ManyNotDot | Token::Many => None,
        };
        let begins = self.0.iter().zip(name.chars()).map_while(is_alike).all(|is| is);
        begins && self.0.iter().rev().zip(name.chars().rev()).map_while(is_alike).all(|is| is)
    }

    /// Follows all ways through the pattern at once, a bit for each, so that no name makes it slow: a letter costs a few
    /// nanoseconds for each 64 letters of the pattern.
    fn matches(&self, name: &str) -> bool {
        if !self.has_ends_of(name) {
            return false;
        }
        let mut letters: Vec<char> = name.chars().collect();
        letters.sort_unstable();
        letters.dedup();
        let words = self.0.len() / 64 + 1;
        // Tokens that are this letter; that are any letter but a dot; that stay at a letter but a dot; that stay at any.
        let mut of_letters = vec![0_u64; letters.len() * words];
        let (mut one, mut many_not_dot, mut many) =
            (vec![0_u64; words], vec![0_u64; words], vec![0_u64; words]);
        for (at, token) in self.0.iter().enumerate() {
            let bit = 1 << (at % 64);
            match token {
                Token::Literal(letter) => {
                    if let Ok(found) = letters.binary_search(letter) {
                        of_letters[found * words + at / 64] |= bit;
                    }
                }
                Token::OneNotDot => one[at / 64] |= bit,
                Token::ManyNotDot => many_not_dot[at / 64] |= bit,
                Token::Many => many[at / 64] |= bit,
            }
        }
        let empty = |word: usize, reached: u64| reached & (many_not_dot[word] | many[word]);
        let mut reached = vec![0_u64; words];
        reached[0] = 1;
        move_on(&mut reached, empty);
        for letter in name.chars() {
            let found = letters.binary_search(&letter).unwrap_or_default();
            let is_dot = letter == '.';
            let mut carried = 0;
            for (word, reached) in reached.iter_mut().enumerate() {
                let taken = of_letters[found * words + word] | if is_dot { 0 } else { one[word] };
                let staying = many[word] | if is_dot { 0 } else { many_not_dot[word] };
                let moved = *reached & taken;
                *reached = (*reached & staying) | (moved << 1) | carried;
                carried = moved >> 63;
            }
            move_on(&mut reached, empty);
        }
        reached[self.0.len() / 64] >> (self.0.len() % 64) & 1 == 1
    }
}

/// Adds the places behind those that `from` picks out of what is reached. No two tokens that may stand for nothing follow one
/// another, so that one step is enough.
fn move_on(reached: &mut [u64], from: impl Fn(usize, u64) -> u64) {
    let mut carried = 0;
    for (word, reached) in reached.iter_mut().enumerate() {
        let moved = from(word, *reached);
        *reached |= (moved << 1) | carried;
        carried = moved >> 63;
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|token| match token {
            Token::Literal(c @ ('*' | '?' | '\\')) => write!(f, "\\{c}"),
            Token::Literal(c) => write!(f, "{c}"),
            Token::OneNotDot => f.write_str("?"),
            Token::ManyNotDot => f.write_str("*"),
            Token::Many => f.write_str("**"),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    fn may(roles: &[&str], permission: Permission, group: &str) -> bool {
        let roles: Vec<String> = roles.iter().map(|role| (*role).to_owned()).collect();
        Permissions::from_roles(&roles).allows(permission, &GroupName::new(group).unwrap())
    }

    fn may_send(roles: &[&str], group: &str) -> bool {
        may(roles, Permission::SendToGroup, group)
    }

    #[test]
    fn singular_roles_are_literal_and_stand_for_one_permission() {
        assert!(!may_send(&[], "x"));
        assert!(may_send(&["webpubsub.sendToGroup"], "x"));
        assert!(!may(&["webpubsub.sendToGroup"], Permission::JoinLeaveGroup, "x"));
        assert!(may(&["webpubsub.joinLeaveGroup.a.b"], Permission::JoinLeaveGroup, "a.b"));
        assert!(!may(&["webpubsub.joinLeaveGroup.a.b"], Permission::JoinLeaveGroup, "a"));
        assert!(may_send(&["webpubsub.sendToGroup.*"], "*"));
        assert!(!may_send(&["WebPubSub.sendToGroup"], "x"), "roles are compared with regard to case");
        assert!(!may_send(&["webpubsub.sendToGroupx", "webpubsub.other"], "x"));
    }

    #[test]
    fn scenario_20_a_star_in_a_singular_role_is_no_wildcard() {
        assert!(!may_send(&["webpubsub.sendToGroup.*"], "x"));
    }

    #[test]
    fn scenario_21_plural_roles_are_patterns() {
        assert!(may_send(&["webpubsub.sendToGroups.a.*"], "a.b"));
        assert!(!may_send(&["webpubsub.sendToGroups.a.*"], "a.b.c"));
    }

    #[test]
    fn pattern_language() {
        for (pattern, yes, no) in [
            ("a?c", vec!["abc", "aéc"], vec!["a.c", "ac", "abbc"]),
            ("a*", vec!["a", "abc"], vec!["a.b", "ba"]),
            ("**", vec!["a", "a.b.c", "."], vec![]),
            ("a.**.z", vec!["a..z", "a.b.z", "a.b.c.z"], vec!["a.z", "a.b"]),
            ("a**z", vec!["az", "a.z", "abz"], vec!["a", "az."]),
            (r"\*\?\\", vec![r"*?\"], vec!["ab\\"]),
            ("*-*", vec!["a-b", "-", "a-b-c"], vec!["a.b-c", "ab"]),
        ] {
            let role = format!("webpubsub.sendToGroups.{pattern}");
            for group in yes {
                assert!(may_send(&[&role], group), "{pattern} {group}");
            }
            for group in no {
                assert!(!may_send(&[&role], group), "{pattern} {group}");
            }
        }
    }

    /// What a pattern means, letter by letter.
    fn naively_matches(tokens: &[Token], name: &[char]) -> bool {
        let Some((first, rest)) = tokens.split_first() else { return name.is_empty() };
        let one = |fits: bool| fits && naively_matches(rest, &name[1..]);
        let many = |fits: fn(char) -> bool| {
            let end = name.iter().position(|c| !fits(*c)).unwrap_or(name.len());
            (0..=end).any(|at| naively_matches(rest, &name[at..]))
        };
        match first {
            Token::Literal(literal) => one(name.first() == Some(literal)),
            Token::OneNotDot => one(name.first().is_some_and(|c| *c != '.')),
            Token::ManyNotDot => many(|c| c != '.'),
            Token::Many => many(|_| true),
        }
    }

    proptest! {
        #[test]
        fn ten_patterns_over_a_long_name_stopped_the_hub(
            parts in vec(select(vec!["a", "b", ".", "?", "\\*", "ü"]), 0..80),
            asterisks in vec((0_usize..80, select(vec!["*", "**"])), 0..3),
            name in "[ab.ü*]{0,90}",
        ) {
            let mut text: Vec<&str> = parts;
            for (at, asterisk) in asterisks {
                text.insert(at.min(text.len()), asterisk);
            }
            let Some(pattern) = Pattern::parse(&text.concat()) else { return Ok(()) };
            let letters: Vec<char> = name.chars().collect();
            prop_assert_eq!(pattern.matches(&name), naively_matches(&pattern.0, &letters));
            // One that fits by its making.
            let fits = text.concat().replace("\\*", "\u{1}").replace('*', "b").replace('?', "a").replace('\u{1}', "*");
            prop_assert!(pattern.matches(&fits));
        }
    }

    #[test]
    fn patterns_read_back_from_their_text() {
        for text in
            ["a?c", "a*", "**", "a.**.z", r"\*\?\\", "*-*", "ü**ü*", "*****", &"a".repeat(PATTERN_CHARS_MAX)]
        {
            let pattern = Pattern::parse(text).unwrap();
            assert_eq!(Pattern::parse(&pattern.to_string()).unwrap().0, pattern.0, "{text}");
        }
    }

    #[test]
    fn invalid_patterns_grant_nothing() {
        for pattern in [r"a\", r"a\b", "", "******", "a*b*c*d*e*f*", &"a".repeat(PATTERN_CHARS_MAX + 1)] {
            assert!(Pattern::parse(pattern).is_none(), "{pattern}");
        }
        assert!(Pattern::parse("*****").is_some());
        assert!(Pattern::parse("a*b*c*d*e*").is_some());
        assert!(Pattern::parse(&"a".repeat(PATTERN_CHARS_MAX)).is_some());
    }

    #[test]
    fn ten_patterns_count_and_an_eleventh_does_not() {
        let roles: Vec<String> =
            (0..=PERMISSION_PATTERNS_MAX).map(|n| format!("webpubsub.sendToGroups.g{n:02}*")).collect();
        let roles: Vec<&str> = roles.iter().rev().map(String::as_str).collect();
        assert!(may_send(&roles, "g09x"));
        assert!(!may_send(&roles, "g10x"));
    }

    #[test]
    fn literal_rules_decide_before_roles_until_changed_again() {
        let group = GroupName::new("ops").unwrap();
        let mut permissions = Permissions::from_roles(&["webpubsub.sendToGroups.**".to_owned()]);
        permissions.revoke(Permission::SendToGroup, &group);
        assert!(!permissions.allows(Permission::SendToGroup, &group));
        assert!(permissions.allows(Permission::SendToGroup, &GroupName::new("other").unwrap()));
        permissions.grant(Permission::SendToGroup, &group);
        assert!(permissions.allows(Permission::SendToGroup, &group));
        assert!(permissions.send.literals().len() == 0, "the grant only took the denial away");

        let mut permissions = Permissions::from_roles(&["webpubsub.sendToGroup.ops".to_owned()]);
        permissions.revoke(Permission::SendToGroup, &group);
        assert!(!permissions.allows(Permission::SendToGroup, &group));
        assert!(
            permissions.send.literals().len() == 0,
            "no role is left that a denial would have to outweigh"
        );
    }

    #[test]
    fn the_thousandth_literal_rule_is_taken_and_the_next_refused() {
        let mut permissions = Permissions::default();
        let group = |n: usize| GroupName::new(&format!("g{n}")).unwrap();
        for n in 0..PERMISSION_LITERALS_MAX {
            assert_eq!(permissions.check_change(Permission::SendToGroup, &group(n), true, 0), Ok(()));
            permissions.grant(Permission::SendToGroup, &group(n));
        }
        let one_more = group(PERMISSION_LITERALS_MAX);
        assert_eq!(
            permissions.check_change(Permission::SendToGroup, &one_more, true, 0),
            Err(PermissionError::TooManyRules)
        );
        permissions.revoke(Permission::SendToGroup, &group(0));
        assert_eq!(permissions.check_change(Permission::SendToGroup, &one_more, true, 0), Ok(()));
        assert_eq!(
            permissions.check_change(Permission::SendToGroup, &one_more, true, 1),
            Err(PermissionError::TooManyRules)
        );
        assert_eq!(permissions.check_change(Permission::SendToGroup, &group(1), false, 1), Ok(()));
        assert_eq!(permissions.check_change(Permission::SendToGroup, &one_more, false, 0), Ok(()));
        assert_eq!(permissions.check_change(Permission::JoinLeaveGroup, &one_more, true, 0), Ok(()));
    }
}
