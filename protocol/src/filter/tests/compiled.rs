//! The compiled form against the plain one, and what the worst filter costs.

use proptest::collection::{btree_set, vec};
use proptest::option;
use proptest::sample::select;

use super::super::{parse, plain};
use super::*;

#[derive(Debug)]
struct Made {
    id: String,
    user: Option<String>,
    protocol: Option<String>,
    groups: BTreeSet<String>,
}

impl Subject for Made {
    fn connection_id(&self) -> &str {
        &self.id
    }

    fn user_id(&self) -> Option<&str> {
        self.user.as_deref()
    }

    fn protocol(&self) -> Option<&str> {
        self.protocol.as_deref()
    }

    fn group_count(&self) -> usize {
        self.groups.len()
    }

    fn is_in_group(&self, group: &str) -> bool {
        self.groups.contains(group)
    }
}

const WORDS: &[&str] = &["", "a", "b", "ab", "Ab", " a ", "aba", "ß", "\u{1F600}a", "a'b"];

fn subject() -> impl Strategy<Value = Made> {
    let word = || select(WORDS).prop_map(str::to_owned);
    (word(), option::of(word()), option::of(word()), btree_set(word(), 0..4))
        .prop_map(|(id, user, protocol, groups)| Made { id, user, protocol, groups })
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Text,
    Number,
    Bool,
}

/// Expressions of a kind, in brackets where they need them.
fn expression(kind: Kind, depth: u32) -> BoxedStrategy<String> {
    let literal = select(WORDS).prop_map(|word| format!("'{}'", word.replace('\'', "''")));
    let leaf = match kind {
        Kind::Text => prop_oneof![
            3 => select(&["userId", "connectionId", "protocol"][..]).prop_map(str::to_owned),
            3 => literal,
            1 => Just("null".to_owned()),
        ]
        .boxed(),
        Kind::Number => {
            prop_oneof![(-2..5).prop_map(|n: i32| n.to_string()), Just("length(groups)".to_owned())].boxed()
        }
        Kind::Bool => prop_oneof![
            1 => select(&["true", "false"][..]).prop_map(str::to_owned),
            6 => literal.prop_map(|literal| format!("{literal} in groups")),
        ]
        .boxed(),
    };
    if depth == 0 {
        return leaf;
    }
    let of = |kind| expression(kind, depth - 1);
    let (text, number, truth) = (|| of(Kind::Text), || of(Kind::Number), || of(Kind::Bool));
    match kind {
        Kind::Text => prop_oneof![
            2 => leaf,
            1 => (select(&["tolower", "toupper", "trim"][..]), text()).prop_map(|(f, a)| format!("{f}({a})")),
            1 => (text(), text()).prop_map(|(a, b)| format!("concat({a},{b})")),
            1 => (text(), number()).prop_map(|(a, n)| format!("substring({a},{n})")),
            1 => (text(), number(), number()).prop_map(|(a, n, m)| format!("substring({a},{n},{m})")),
        ]
        .boxed(),
        Kind::Number => prop_oneof![
            1 => leaf,
            1 => text().prop_map(|a| format!("length({a})")),
            1 => (text(), text()).prop_map(|(a, b)| format!("indexof({a},{b})")),
        ]
        .boxed(),
        Kind::Bool => {
            let any = || prop_oneof![text(), number(), truth()];
            let operand = || any().prop_map(|a| format!("({a})"));
            prop_oneof![
                1 => leaf,
                3 => (select(&["contains", "startswith", "endswith"][..]), text(), text())
                    .prop_map(|(f, a, b)| format!("{f}({a},{b})")),
                4 => (operand(), select(&["eq", "ne"][..]), operand()).prop_map(|(a, op, b)| format!("{a} {op} {b}")),
                4 => (text(), select(&["eq", "ne"][..]), text()).prop_map(|(a, op, b)| format!("{a} {op} {b}")),
                2 => (number(), select(&["eq", "ne", "lt", "le", "gt", "ge"][..]), number())
                    .prop_map(|(a, op, b)| format!("{a} {op} {b}")),
                2 => truth().prop_map(|a| format!("not ({a})")),
                4 => (select(&[" and ", " or "][..]), vec(truth(), 2..5))
                    .prop_map(|(op, all)| all.iter().map(|a| format!("({a})")).collect::<Vec<_>>().join(op)),
                2 => (operand(), vec(any(), 0..4)).prop_map(|(a, items)| format!("{a} in ({})", items.join(","))),
                1 => text().prop_map(|a| format!("({a}) in groups")),
                1 => Just("groups eq groups".to_owned()),
            ]
            .boxed()
        }
    }
}

fn members(filter: &Filter, subjects: &[Made]) -> Vec<u64> {
    let of_group = |group: &str| {
        let are = subjects.iter().enumerate().map(|(at, one)| u64::from(one.is_in_group(group)) << at);
        are.fold(0, |all, one| all | one)
    };
    filter.groups().map(of_group).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_compiled_form_selects_whom_the_plain_one_does(
        text in expression(Kind::Bool, 3),
        subjects in vec(subject(), 1..=SUBJECTS_MAX),
    ) {
        let expression = parse::parse(&text);
        prop_assert!(expression.is_ok(), "{} {:?}", text, expression);
        let (expression, filter) = (expression.unwrap(), Filter::stored(&text).unwrap());
        let (selected, _) = filter.select(&subjects, &members(&filter, &subjects));
        for (at, subject) in subjects.iter().enumerate() {
            let expected = plain::is_true(&expression, subject);
            prop_assert_eq!(selected >> at & 1 == 1, expected, "{} {:?}", text, subject);
            prop_assert_eq!(filter.selects(subject), expected);
            let is_within = |narrowed: &Narrowed<'_>| match *narrowed {
                Narrowed::Connection(id) => subject.id == id,
                Narrowed::User(user) => subject.user.as_deref() == Some(user),
                Narrowed::Group(group) => subject.groups.contains(group),
            };
            if let Some(narrowed) = filter.narrowed() {
                prop_assert!(!expected || narrowed.iter().any(is_within), "{} {:?}", text, subject);
            }
        }
        if subjects.len() < SUBJECTS_MAX {
            prop_assert_eq!(selected >> subjects.len(), 0);
        }
    }
}

#[test]
fn what_is_asked_for_by_name_need_not_be_looked_for_among_all() {
    let narrowed = |text| Filter::parse(text).unwrap().narrowed().map(|narrowed| format!("{narrowed:?}"));
    for (text, expected) in [
        ("connectionId eq 'c'", Some(r#"[Connection("c")]"#)),
        ("'g' in groups and not ('h' in groups)", Some(r#"[Group("g")]"#)),
        ("length(userId) gt 2 and userId in ('a','b')", Some(r#"[User("a"), User("b")]"#)),
        ("'g' in groups or userId eq 'a'", Some(r#"[Group("g"), User("a")]"#)),
        ("userId eq null", None),
        ("'g' in groups or userId ne 'a'", None),
        ("tolower(userId) eq 'a'", None),
    ] {
        assert_eq!(narrowed(text).as_deref(), expected, "{text}");
    }
}

fn many(bytes: usize, operator: &str, clause: impl Fn(usize) -> String) -> String {
    let mut text = clause(0);
    for n in 1.. {
        let more = clause(n);
        if text.len() + operator.len() + more.len() > bytes {
            break;
        }
        text.push_str(operator);
        text.push_str(&more);
    }
    text
}

/// Filters as long as they may be, of whatever the language has.
fn long() -> Vec<String> {
    let max = FILTER_BYTES_MAX;
    vec![
        many(max, " or ", |n| format!("userId eq 'u{n}'")),
        many(max, " and ", |n| format!("userId ne 'u{n}'")),
        many(max, " or ", |n| format!("not(userId ne 'u{n}')")),
        many(max, " or ", |n| format!("'g{n}' in groups")),
        many(max, " and ", |n| format!("not('g{n}' in groups and userId eq 'u{n}')")),
        many(max, " or ", |n| {
            format!("(userId eq 'u{n}' and connectionId eq 'c{n}' and protocol eq 'p{n}')")
        }),
        many(max, " or ", |n| format!("(userId eq 'u{n}') eq (userId eq 'v{n}')")),
        many(max, " or ", |_| "userId in groups".to_owned()),
        many(max, " or ", |n| format!("contains('{n}','x')")),
        many(max, " or ", |n| format!("tolower(userId) eq 'u{n}'")),
        format!("userId in ({})", many(max - 20, ",", |n| format!("'u{n}'"))),
    ]
}

#[test]
fn a_filter_of_15_kb_cost_each_connection_as_much_as_it_is_long() {
    let one = |n: usize| Made {
        id: format!("connection-{n}"),
        user: Some(format!("user-{n}")),
        protocol: None,
        groups: (0..10).map(|group| format!("group-{group}")).collect(),
    };
    let subjects: Vec<Made> = (0..SUBJECTS_MAX).map(one).collect();
    let steps = |text: &str| {
        let filter = Filter::parse(text).unwrap_or_else(|error| panic!("{error}: {}", &text[..60]));
        filter.select(&subjects, &members(&filter, &subjects)).1
    };
    let short = steps("userId eq 'u' or connectionId eq 'c' or protocol eq 'p'");
    for text in long() {
        assert!(text.len() > FILTER_BYTES_MAX - 100);
        let long = steps(&text);
        assert!(long < 10 * short, "{long} steps, a short one {short}: {}", &text[..60]);
    }
}

#[test]
fn what_is_computed_of_each_connection_is_bounded() {
    let clauses: [fn(usize) -> String; 9] = [
        |n| format!("contains(userId,'{n}')"),
        |n| format!("startswith(protocol,'{n}')"),
        |n| format!("endswith(connectionId,'{n}')"),
        |n| format!("length(groups) gt {n}"),
        |n| format!("indexof(connectionId,'{n}') gt length(groups)"),
        |n| format!("indexof(userId,'{n}') in (null)  or  length(groups) lt {n}"),
        |n| format!("contains('{n}',userId) or endswith(userId,'{n}')"),
        |n| format!("contains('{}{n}',userId)", "x".repeat(250)),
        |n| format!("contains(userId,'{n}')"),
    ];
    for (at, clause) in clauses.into_iter().enumerate() {
        let text = |count: usize| (0..count).map(clause).collect::<Vec<_>>().join(" or ");
        assert!(Filter::parse(&text(40)).is_ok(), "clause {at}");
        if text(FILTER_VALUES_MAX + 60).len() > FILTER_BYTES_MAX {
            continue;
        }
        let error = Filter::parse(&text(FILTER_VALUES_MAX + 60)).unwrap_err();
        assert_eq!(error, FilterError { position: 0, problem: FilterProblem::TooCostly }, "clause {at}");
        assert!(Filter::stored(&text(FILTER_VALUES_MAX + 60)).is_ok(), "a record may have it");
    }
    let exactly = |count: usize| many_of("contains(userId,'", "')", count);
    assert!(Filter::parse(&exactly(FILTER_VALUES_MAX)).is_ok());
    assert!(Filter::parse(&exactly(FILTER_VALUES_MAX + 1)).is_err());
}

fn many_of(front: &str, back: &str, count: usize) -> String {
    (0..count).map(|n| format!("{front}{n}{back}")).collect::<Vec<_>>().join(" or ")
}

#[test]
fn a_text_that_is_put_together_counts_as_long_as_it_gets() {
    let doubled =
        |times: u32| (0..times).fold("userId".to_owned(), |text, _| format!("concat({text},{text})"));
    assert!(Filter::parse(&format!("{} eq 'x'", doubled(4))).is_ok());
    assert_eq!(
        Filter::parse(&format!("{} eq 'x'", doubled(5))).unwrap_err().problem,
        FilterProblem::TooCostly
    );
    let lowered =
        |times: usize| format!("{}{}{} eq 'x'", "tolower(".repeat(times), doubled(2), ")".repeat(times));
    assert!(Filter::parse(&lowered(20)).is_ok());
    assert_eq!(Filter::parse(&lowered(25)).unwrap_err().problem, FilterProblem::TooCostly);
    let long = "x".repeat(8_000);
    let copied = format!("{}concat('{long}',userId){} eq 'x'", "trim(".repeat(4), ")".repeat(4));
    assert_eq!(Filter::parse(&copied).unwrap_err().problem, FilterProblem::TooCostly);
}
