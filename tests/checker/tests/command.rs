//! The command `oncewire-check` and the limits of what it reads and shows.

#![allow(clippy::expect_used, clippy::panic, reason = "what a test's helper can't do fails the test")]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use oncewire_checker::{
    Event, History, KEPT_PER_KIND_MAX, LINE_BYTES_MAX, Message, Note, Opened, ReadError, SHOWN_MAX,
    ViolationKind, check,
};

const RIGHT: &str = r#"
{"event":"opened","connection":"c1","hub":"chat","reliable":true}
{"event":"note","text":"nothing special"}

{"event":"join","connection":"c1","group":"lobby","ack_id":1}
{"event":"acked","connection":"c1","ack_id":1,"success":true}
{"event":"publish","connection":"c1","group":"lobby","message":"m1","ack_id":2}
{"event":"delivered","connection":"c1","group":"lobby","message":"m1","sequence_id":1}
{"event":"acked","connection":"c1","ack_id":2,"success":true}
{"event":"quiesced"}
"#;

fn run(name: &str, files: &[&str], json: bool) -> (i32, String, String) {
    let paths: Vec<PathBuf> = files
        .iter()
        .enumerate()
        .map(|(number, text)| {
            let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{number}.jsonl"));
            fs::write(&path, text).expect("the directory for tests is writable");
            path
        })
        .collect();
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncewire-check"));
    let Output { status, stdout, stderr } =
        command.args(json.then_some("--json")).args(paths).output().expect("the command runs");
    let text = |bytes| String::from_utf8(bytes).expect("the output is text");
    (status.code().unwrap_or(-1), text(stdout), text(stderr))
}

#[test]
fn a_right_history_exits_with_0() {
    let (code, stdout, _) = run("right", &[RIGHT], false);
    assert_eq!(code, 0, "{stdout}");
    assert!(stdout.ends_with("verdict: ok\n"), "{stdout}");
}

#[test]
fn a_broken_promise_exits_with_1_and_shows_its_proof() {
    let broken = RIGHT.replace(r#"{"event":"quiesced"}"#, "");
    let twice = r#"{"event":"delivered","connection":"c1","group":"lobby","message":"m1","sequence_id":2}"#;
    let (code, stdout, _) = run("broken", &[&format!("{broken}{twice}\n")], false);
    assert_eq!(code, 1, "{stdout}");
    assert!(stdout.contains("Duplicated: c1 got m1 in lobby, copy 2 of 1"), "{stdout}");
    assert!(stdout.contains(&format!("broken-0.jsonl:11: {twice}")), "{stdout}");
    assert!(stdout.ends_with("verdict: 1 violations\n"), "{stdout}");
}

#[test]
fn json_holds_the_whole_verdict() {
    let kept = RIGHT.lines().filter(|line| !line.contains("delivered"));
    let lost: String = kept.map(|line| format!("{line}\n")).collect();
    let (code, stdout, _) = run("json", &[&lost], true);
    let verdict: serde_json::Value = serde_json::from_str(&stdout).expect("one JSON object");
    assert_eq!(code, 1);
    assert_eq!(verdict["violations"][0]["kind"], "lost");
    assert_eq!(verdict["violations"][0]["evidence"][0]["event"]["event"], "acked");
    assert_eq!(verdict["violation_counts"]["lost"], 1);
    assert_eq!(verdict["statistics"]["must_arrive"], 1);
}

#[test]
fn several_files_are_one_history() {
    let publisher = r#"{"event":"opened","connection":"p","hub":"chat","reliable":true}
{"event":"publish","connection":"p","group":"lobby","message":"m1"}"#;
    let subscriber = r#"{"event":"opened","connection":"s","hub":"chat","reliable":true,"groups":["lobby"]}
{"event":"delivered","connection":"s","group":"lobby","message":"m1","sequence_id":1}"#;
    assert_eq!(run("together", &[subscriber, publisher], false).0, 0);
    assert_eq!(run("alone", &[subscriber], false).0, 1);
}

#[test]
fn what_is_not_a_history_exits_with_2() {
    for (name, text, complaint) in [
        ("text", "hello", "text-0.jsonl:1: expected value"),
        ("kind", r#"{"event":"deliverd"}"#, "unknown variant `deliverd`"),
        ("field", "\n{\"event\":\"quiesced\",\"atMs\":1}", "field-0.jsonl:2: unknown field `atMs`"),
        ("lacking", r#"{"event":"dropped"}"#, "missing field `connection`"),
        ("negative", r#"{"event":"sequence_ack","connection":"c","sequence_id":-1}"#, "invalid value"),
    ] {
        let (code, stdout, stderr) = run(name, &[text], false);
        assert_eq!(code, 2, "{name}: {stdout}");
        assert!(stderr.contains(complaint), "{name}: {stderr}");
    }
    let missing =
        Command::new(env!("CARGO_BIN_EXE_oncewire-check")).arg("/no/such/file").output().expect("it runs");
    assert_eq!(missing.status.code(), Some(2));
}

#[test]
fn a_recorders_mistake_exits_with_2() {
    let (code, stdout, _) = run("mistake", &[r#"{"event":"dropped","connection":"c1"}"#], false);
    assert_eq!(code, 2);
    assert!(stdout.contains("malformed: this connection was not opened before"), "{stdout}");
}

#[test]
fn a_line_may_be_as_long_as_the_limit() {
    let line = |bytes: usize| {
        let frame = r#"{"event":"note","text":""}"#.len();
        format!("{{\"event\":\"note\",\"text\":\"{}\"}}", "x".repeat(bytes - frame))
    };
    let mut history = History::new();
    assert!(history.read("at the limit", format!("{}\r\n", line(LINE_BYTES_MAX)).as_bytes()).is_ok());
    let beyond = history.read("beyond", line(LINE_BYTES_MAX + 1).as_bytes());
    assert!(matches!(beyond, Err(ReadError::LineTooLong { line: 1, .. })));
}

#[test]
fn violations_are_all_counted_but_few_are_kept_and_shown() {
    let judged = |count: usize| {
        let mut history = History::new();
        let recorder = history.recorder("r");
        let opened = Opened { connection: "c".into(), hub: "h".into(), ..Default::default() };
        history.push(recorder, Event::Opened(Opened { groups: vec!["g".into()], ..opened }));
        for number in 0..count {
            let message = format!("m{number}");
            let event = Message { connection: "c".into(), group: "g".into(), message, sequence_id: None };
            history.push(recorder, Event::Delivered(event));
            history.push(recorder, Event::Note(Note { text: "unrelated".into() }));
        }
        check(&history)
    };
    for (count, kept) in [(KEPT_PER_KIND_MAX, KEPT_PER_KIND_MAX), (KEPT_PER_KIND_MAX + 1, KEPT_PER_KIND_MAX)]
    {
        let verdict = judged(count);
        assert_eq!(verdict.count(ViolationKind::Phantom), count as u64);
        assert_eq!(verdict.violations.len(), kept);
        assert_eq!(verdict.to_string().matches("\nPhantom: ").count() + 1, SHOWN_MAX);
        assert!(verdict.to_string().contains(&format!("... and {} more", count - SHOWN_MAX)));
    }
    assert!(!judged(SHOWN_MAX).to_string().contains("more"));
}
