mod compiled;

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

struct Connection {
    id: &'static str,
    user: Option<&'static str>,
    groups: BTreeSet<&'static str>,
    protocol: Option<&'static str>,
}

impl Subject for Connection {
    fn connection_id(&self) -> &str {
        self.id
    }

    fn user_id(&self) -> Option<&str> {
        self.user
    }

    fn protocol(&self) -> Option<&str> {
        self.protocol
    }

    fn group_count(&self) -> usize {
        self.groups.len()
    }

    fn is_in_group(&self, group: &str) -> bool {
        self.groups.contains(group)
    }
}

fn connections() -> [(char, Connection); 4] {
    let connection = |id, user, groups: &[&'static str], protocol| Connection {
        id,
        user,
        groups: groups.iter().copied().collect(),
        protocol,
    };
    [
        ('A', connection("c-one", Some("ann"), &["red", "blue"], Some("json.webpubsub.azure.v1"))),
        ('B', connection("c-two", Some("bob"), &["red"], Some("protobuf.webpubsub.azure.v1"))),
        ('C', connection("c-tre", None, &[], None)),
        (
            'D',
            connection(
                "c-for",
                Some("O'Neil, Tom"),
                &["blue", "a b"],
                Some("json.reliable.webpubsub.azure.v1"),
            ),
        ),
    ]
}

fn selected(filter: &str) -> String {
    let filter = Filter::parse(filter).unwrap_or_else(|error| panic!("{filter}: {error}"));
    connections().iter().filter(|(_, connection)| filter.selects(connection)).map(|(name, _)| *name).collect()
}

/// Filters, and which of the connections each selects.
const SELECTING: &[(&str, &str)] = &[
    ("userId eq 'ann'", "A"),
    ("USERID eq 'ann'", "A"),
    ("userId eq 'Ann'", ""),
    ("tolower(userId) eq 'ann'", "A"),
    ("toupper(userId) eq 'ANN'", "A"),
    ("userId ne 'ann'", "BCD"),
    ("userId eq null", "C"),
    ("userId ne null", "ABD"),
    ("not (userId eq null)", "ABD"),
    ("not(userId eq null)", "ABD"),
    ("not not (userId eq null)", "C"),
    ("userId eq 'O''Neil, Tom'", "D"),
    ("userId in ('ann','O''Neil, Tom')", "AD"),
    ("userId in ('ann', null)", "AC"),
    ("userId in ()", ""),
    ("userId in (,'ann',,)", "A"),
    ("userId in('ann')", "A"),
    ("connectionId in (concat('c-', 'two'))", "B"),
    ("(length(userId) eq 3) in (true)", "AB"),
    ("'red' in groups", "AB"),
    ("'red' in GROUPS", "AB"),
    ("1 in groups", ""),
    ("userId in groups", ""),
    ("not 'red' in groups", "CD"),
    ("'red' in groups and not ('blue' in groups)", "B"),
    ("'red' in groups or 'blue' in groups", "ABD"),
    ("'a b' in groups", "D"),
    ("length(groups) eq 0", "C"),
    ("length(groups) ge 2", "AD"),
    ("length(userId) gt 3", "D"),
    ("length(userId) le 3", "AB"),
    ("length(userId) lt 4", "AB"),
    ("not (length(userId) gt 3)", "ABC"),
    ("3 eq length(userId)", "AB"),
    ("null gt 1", ""),
    ("length(null) eq null", "ABCD"),
    ("startswith(userId,'a')", "A"),
    ("endswith(connectionId,'o')", "B"),
    ("contains(userId,'Neil')", "D"),
    ("contains(userId,'neil')", ""),
    ("contains(null,'a')", ""),
    ("indexof(userId,'n') eq 1", "A"),
    ("indexof(userId,'z') eq -1", "ABCD"),
    ("indexof(userId,'') eq 0", "ABD"),
    ("substring(userId,1,1) eq 'o'", "B"),
    ("substring(userId,9) eq null", "ABC"),
    ("substring(userId,9) eq 'om'", "D"),
    ("substring(userId,3) eq ''", "AB"),
    ("substring(userId,-1) eq null", "ABCD"),
    ("substring(userId,0,4) eq null", "ABC"),
    ("substring(userId,0,null) eq null", "ABCD"),
    ("concat(userId,'-x') eq '-x'", "C"),
    ("concat(userId,null) eq userId", "ABCD"),
    ("trim('  ann ') eq userId", "A"),
    ("startswith(protocol,'json.')", "AD"),
    ("protocol eq null", "C"),
    ("userId eq null or 'red' in groups and 'blue' in groups", "AC"),
    ("(userId eq null or 'red' in groups) and 'blue' in groups", "A"),
    ("userId eq 1", ""),
    ("userId ne 1", "ABCD"),
    ("true", "ABCD"),
    ("false", ""),
    ("  true\t", "ABCD"),
    ("true eq (userId eq null)", "C"),
    ("length(userId) gt 2 eq true", "ABD"),
    ("groups eq groups", ""),
    ("groups ne null", "ABCD"),
    ("length('\u{1F600}é') eq 3", "ABCD"),
    ("indexof('\u{1F600}a','a') eq 2", "ABCD"),
    ("substring('\u{1F600}a',2) eq 'a'", "ABCD"),
    ("-2147483648 lt 2147483647", "ABCD"),
];

#[test]
fn each_filter_selects_these_connections() {
    for (filter, expected) in SELECTING {
        assert_eq!(selected(filter), *expected, "{filter}");
    }
}

/// Texts that are no filters, where, and what is wrong.
const REFUSED: &[(&str, usize, &str)] = &[
    ("", 0, "an expression is expected"),
    (" ", 1, "an expression is expected"),
    ("userId", 0, "type 'string', expected 'bool'"),
    ("null", 0, "type 'null', expected 'bool'"),
    ("userId lt 'b'", 0, "type 'string', expected 'int'"),
    ("1 lt 'b'", 5, "type 'string', expected 'int'"),
    ("true lt 1", 0, "type 'bool', expected 'int'"),
    ("not userId eq 'ann'", 4, "type 'string', expected 'bool'"),
    ("not length(userId) gt 5", 4, "type 'int', expected 'bool'"),
    ("userId EQ 'ann'", 7, "an operator or the end is expected"),
    ("userId = 'ann'", 7, "an operator or the end is expected"),
    ("userId == 'ann'", 7, "an operator or the end is expected"),
    ("userId eq \"ann\"", 10, "'\"' is not supported"),
    ("userId eq 'ann", 10, "a closing quote is expected"),
    ("userId eq 'ann''", 10, "a closing quote is expected"),
    ("groups/any(g: g eq 'red')", 6, "an operator or the end is expected"),
    ("userName eq 'x'", 0, "'userName' is not supported"),
    ("length(userId) add 1 gt 3", 15, "an operator or the end is expected"),
    ("length(userId) eq 3L", 18, "'another number than an int' is not supported"),
    ("length(userId) eq 3.5", 18, "'another number than an int' is not supported"),
    ("length(userId) eq 2147483648", 18, "the number is not a 32-bit integer"),
    ("length(userId) eq -2147483649", 18, "the number is not a 32-bit integer"),
    ("length(userId) eq - 1", 18, "a number is expected"),
    ("'x' in userId", 7, "a list or 'groups' is expected"),
    ("'x' in", 6, "a list or 'groups' is expected"),
    ("'x' in ('a' 'b')", 12, "',' or ')' is expected"),
    ("'x' in ('a'", 11, "',' or ')' is expected"),
    ("userId eq 'ann' and", 19, "an expression is expected"),
    ("userId eq 'ann' and 1", 20, "type 'int', expected 'bool'"),
    ("true and userId or true", 9, "type 'string', expected 'bool'"),
    ("TRUE", 0, "'TRUE' is not supported"),
    ("(true", 5, "')' is expected"),
    ("true)", 4, "an operator or the end is expected"),
    ("length (userId) eq 3", 0, "'length' is not supported"),
    ("length(1) eq 3", 7, "type 'int', expected 'string or collection'"),
    ("length() eq 3", 0, "the function takes another number of arguments"),
    ("length(userId,userId) eq 3", 0, "the function takes another number of arguments"),
    ("substring(userId) eq ''", 0, "the function takes another number of arguments"),
    ("substring(userId,'a') eq ''", 17, "type 'string', expected 'int'"),
    ("contains(userId 'a')", 16, "',' or ')' is expected"),
    ("contains(groups,'a')", 9, "type 'collection', expected 'string'"),
    ("Contains(userId,'a')", 0, "'Contains' is not supported"),
    ("guid'1'", 0, "'guid'' is not supported"),
    ("userId has 'a'", 7, "an operator or the end is expected"),
    ("@p eq 1", 0, "'@' is not supported"),
    ("'ü\u{1F600}' eq 1 and 'ü' lt 1", 14, "type 'string', expected 'int'"),
];

#[test]
fn a_refusal_says_where_and_why() {
    for (filter, position, problem) in REFUSED {
        let error = Filter::parse(filter).expect_err(filter);
        assert_eq!((error.position, &*error.problem.to_string()), (*position, *problem), "{filter}");
        assert_eq!(error.to_string(), format!("Invalid filter at position {position}: {problem}."));
    }
}

#[test]
fn the_length_is_bounded() {
    let of = |bytes: usize| format!("'{}' ne 'x'", "a".repeat(bytes - 9));
    assert!(Filter::parse(&of(FILTER_BYTES_MAX)).is_ok());
    let error = Filter::parse(&of(FILTER_BYTES_MAX + 1)).unwrap_err();
    assert_eq!(error, FilterError { position: 0, problem: FilterProblem::TooLong });
}

#[test]
fn each_way_to_nest_is_bounded() {
    let ways: [fn(usize) -> String; 4] = [
        |depth| format!("{}true{}", "(".repeat(depth), ")".repeat(depth)),
        |depth| format!("{}true", "not ".repeat(depth)),
        |depth| format!("true{}", " eq true".repeat(depth)),
        |depth| format!("true and true in {}{}", "(true in ".repeat(depth - 1) + "()", ")".repeat(depth - 1)),
    ];
    for way in ways {
        assert!(Filter::parse(&way(12)).is_ok(), "{}", way(12));
        assert!(Filter::parse(&way(FILTER_DEPTH_MAX)).is_ok(), "{}", way(FILTER_DEPTH_MAX));
        let error = Filter::parse(&way(FILTER_DEPTH_MAX + 1)).unwrap_err();
        assert_eq!(error.problem, FilterProblem::TooDeep);
    }
    let calls = |depth: usize| format!("{}userId{} eq 'ann'", "trim(".repeat(depth), ")".repeat(depth));
    assert_eq!(selected(&calls(FILTER_DEPTH_MAX)), "A");
    assert_eq!(Filter::parse(&calls(FILTER_DEPTH_MAX + 1)).unwrap_err().problem, FilterProblem::TooDeep);
}

#[test]
fn many_clauses_are_not_deep() {
    let many = |operator: &str| vec!["userId ne 'x'"; 800].join(operator);
    assert_eq!(selected(&many(" and ")), "ABCD");
    assert_eq!(selected(&many(" or ")), "ABCD");
}

#[test]
fn debug_shows_no_name() {
    let filter = Filter::parse("userId eq 'ann'").unwrap();
    assert_eq!(format!("{filter:?}"), "Filter(15 bytes)");
    assert_eq!(filter, Filter::parse(filter.as_str()).unwrap());
}

/// Filters over few values, so that many of them select something.
fn any_filter() -> impl Strategy<Value = String> {
    let text = prop_oneof![
        Just("'ann'"),
        Just("'bob'"),
        Just("'red'"),
        Just("'a b'"),
        Just("''"),
        Just("null"),
        Just("userId"),
        Just("connectionId"),
        Just("protocol"),
        Just("tolower(userId)"),
        Just("concat('a', 'nn')"),
    ];
    let texts = prop::collection::vec(text.clone(), 0..5);
    let question = prop_oneof![
        4 => (text.clone(), prop_oneof![Just("eq"), Just("ne")], text.clone()).prop_map(|(a, is, b)| format!("{a} {is} {b}")),
        2 => text.clone().prop_map(|text| format!("{text} in groups")),
        1 => (text, texts).prop_map(|(text, list)| format!("{text} in ({})", list.join(", "))),
        1 => Just("groups eq 'red'".to_owned()),
        1 => Just("true".to_owned()),
    ];
    question.prop_recursive(4, 24, 6, |inner| {
        let chain = prop::collection::vec(inner.clone(), 2..6);
        prop_oneof![
            chain.clone().prop_map(|operands| format!("({})", operands.join(" or "))),
            chain.prop_map(|operands| format!("({})", operands.join(" and "))),
            inner.prop_map(|operand| format!("not ({operand})")),
        ]
    })
}

/// Whether the plain and the compiled form agree on a filter, for all connections.
fn agrees(text: &str) -> Result<(), TestCaseError> {
    let Ok(plain) = parse::parse(text) else { return Ok(()) };
    let filter = Filter::parse(text).unwrap();
    for (name, connection) in connections() {
        let expected = plain::is_true(&plain, &connection);
        prop_assert_eq!(filter.selects(&connection), expected, "{} for {}", text, name);
    }
    Ok(())
}

#[test]
fn a_thousand_questions_about_one_value_were_asked_of_each_connection_one_by_one() {
    let chain = |operand: &str, operator: &str| {
        let operands: Vec<_> = (0..400).map(|n| operand.replace('#', &format!("u{n}"))).collect();
        operands.join(operator)
    };
    // Texts that are looked for among literals, with how many, and groups that are looked up.
    let asked = |text: &str| {
        let program = Filter::parse(text).unwrap().program;
        let values: Vec<_> = program.asked.iter().map(|asked| asked.values.len()).collect();
        (values, program.groups.len())
    };
    assert_eq!(asked(&chain("userId eq '#'", " or ")), (vec![400], 0));
    assert_eq!(asked(&chain("'#' eq tolower(userId)", " or ")), (vec![400], 0));
    assert_eq!(asked(&chain("'#' in groups", " or ")), (vec![], 400));
    assert_eq!(asked(&format!("connectionId in ({})", chain("'#'", ", "))), (vec![400], 0));
    for denied in ["userId ne '#'", "not (userId eq '#')"] {
        assert_eq!(asked(&chain(denied, " and ")), (vec![400], 0), "{denied}");
    }
    assert_eq!(asked(&chain("not ('#' in groups)", " and ")), (vec![], 400));
    for both in ["userId eq '#' or 'red' in groups", "connectionId ne '#' and userId eq 'ann'"] {
        agrees(&chain(both, " or ")).unwrap();
        agrees(&chain(both, " and ")).unwrap();
    }
}

proptest! {
    #[test]
    fn questions_that_come_several_times_select_the_same(filter in any_filter()) {
        agrees(&filter)?;
    }

    #[test]
    fn any_text_is_a_filter_or_an_error_within_it(text in "\\PC{0,80}") {
        if let Err(error) = Filter::parse(&text) {
            prop_assert!(error.position <= text.chars().count());
        }
    }

    #[test]
    fn a_quoted_text_is_that_text(text in "\\PC{0,40}") {
        let filter = Filter::parse(&format!("'{}' in groups", text.replace('\'', "''"))).unwrap();
        struct InOne(String);
        impl Subject for InOne {
            fn connection_id(&self) -> &str { "" }
            fn user_id(&self) -> Option<&str> { None }
            fn protocol(&self) -> Option<&str> { None }
            fn group_count(&self) -> usize { 1 }
            fn is_in_group(&self, group: &str) -> bool { group == self.0 }
        }
        prop_assert!(filter.selects(&InOne(text)));
    }
}
