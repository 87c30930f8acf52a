//! The rules of the map that a compiler does not hold: who may import whom, how long a file may be, what must not
//! stand in code that users run.

#![allow(clippy::unwrap_used, reason = "a file that can't be read fails the test")]

#[path = "architecture/cycles.rs"]
mod cycles;

use std::fs;
use std::path::{Path, PathBuf};

/// A file above this is refused; 300 is usual, 600 wants a reason.
const FILE_LINES_MAX: usize = 1000;
const FILE_LINES_REASON: usize = 600;

/// Files over [`FILE_LINES_REASON`] lines, each with its reason.
const LONG_FILES: &[(&str, &str)] = &[];

/// What each room of the gateway may import of the others.
const GATEWAY_IMPORTS: &[(&str, &[&str])] = &[
    ("admin", &["config", "engine", "store", "telemetry"]),
    ("auth", &["telemetry"]),
    ("config", &[]),
    ("demo", &["auth", "config", "edge", "engine", "telemetry"]),
    ("edge", &["admin", "auth", "config", "engine", "query", "reload", "telemetry"]),
    ("engine", &["config", "store", "telemetry"]),
    ("events", &["auth", "config", "engine", "reload", "telemetry"]),
    (
        "gateway",
        &[
            "admin",
            "auth",
            "config",
            "demo",
            "edge",
            "engine",
            "events",
            "reload",
            "rest",
            "store",
            "telemetry",
        ],
    ),
    ("query", &[]),
    ("reload", &[]),
    ("rest", &["admin", "auth", "config", "engine", "query", "telemetry"]),
    ("store", &["config", "telemetry"]),
    ("telemetry", &[]),
];

/// What each room of the protocol crate may import of the others.
const PROTOCOL_IMPORTS: &[(&str, &[&str])] = &[
    ("client", &["wire"]),
    ("driver", &["hub", "log", "session", "wire"]),
    ("filter", &[]),
    ("hub", &["filter", "log", "session", "wire"]),
    ("log", &["filter", "wire"]),
    ("session", &["filter", "log", "wire"]),
    ("wire", &[]),
];

/// Rooms of the protocol crate in which files need each other in a circle. None of the gateway's does.
const CYCLIC_PROTOCOL_ROOMS: &[&str] = &["hub", "log", "session", "wire"];

/// The wall around the protocol crate: nothing that does I/O, waits, reads a clock or rolls dice.
const PROTOCOL_DEPENDENCIES: &[&str] = &[
    "base64",
    "bytes",
    "indexmap",
    "itoa",
    "memchr",
    "parking_lot",
    "prost",
    "serde",
    "serde_json",
    "slotmap",
    "thiserror",
    "winnow",
    "xxhash-rust",
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(folder: &str) -> Vec<(String, String)> {
    let mut files = Vec::new();
    collect(&root().join(folder), &mut files);
    files.sort();
    assert!(!files.is_empty(), "{folder} holds no Rust file");
    files
}

fn collect(folder: &Path, files: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if !["target", "node_modules", ".venv"].iter().any(|skip| path.ends_with(skip)) {
                collect(&path, files);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
            files.push((name, fs::read_to_string(&path).unwrap()));
        }
    }
}

/// The part of a file that users run, by line: nothing of a test file, and of others what stands before their tests.
fn shipped<'a>(file: &str, text: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
    let is_test_file = ["tests.rs", "conformance.rs", "testing.rs"].iter().any(|end| file.ends_with(end))
        || file.contains("/tests/");
    let tests_begin = text.find("#[cfg(test)]\nmod tests {");
    let end = if is_test_file { 0 } else { tests_begin.unwrap_or(text.len()) };
    let lines = text[..end].lines().enumerate().map(|(number, line)| (number + 1, line));
    lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
}

/// The room of a file below `src`: `src/edge/socket.rs` is in `edge`.
fn room(file: &str, below: &str) -> String {
    let rest = file.strip_prefix(below).unwrap();
    rest.split('/').next().unwrap().trim_end_matches(".rs").to_owned()
}

/// Rooms that a file names after `crate::`.
fn imported_rooms(file: &str, text: &str) -> Vec<(usize, String)> {
    let mut rooms = Vec::new();
    for (number, line) in shipped(file, text) {
        for part in line.split("crate::").skip(1) {
            assert!(
                !part.starts_with('{'),
                "{file}:{number}: one `crate::` for each room, or this test sees none"
            );
            let room: String = part.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            rooms.push((number, room));
        }
    }
    rooms
}

fn check_imports(below: &str, allowed: &[(&str, &[&str])]) {
    let mut wrong = Vec::new();
    for (file, text) in rust_files(below) {
        let own = room(&file, below);
        // The command may use all rooms.
        if ["lib", "bin"].contains(&own.as_str()) {
            continue;
        }
        let Some((_, may)) = allowed.iter().find(|(name, _)| *name == own) else {
            wrong.push(format!("{file}: the room `{own}` is not on the map"));
            continue;
        };
        for (line, imported) in imported_rooms(&file, &text) {
            let is_room = allowed.iter().any(|(name, _)| *name == imported);
            if is_room && imported != own && !may.contains(&imported.as_str()) {
                wrong.push(format!("{file}:{line}: `{own}` imports `{imported}`"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn imports_run_one_way() {
    check_imports("src/", GATEWAY_IMPORTS);
    check_imports("protocol/src/", PROTOCOL_IMPORTS);
}

#[test]
fn no_files_need_each_other() {
    for (below, known) in [("src/", &[][..]), ("protocol/src/", CYCLIC_PROTOCOL_ROOMS)] {
        let mut cycles = cycles::rooms_with_cycles(below);
        for room in known {
            assert!(cycles.remove(*room).is_some(), "`{room}` has no cycle any more: take it off the list");
        }
        assert!(cycles.is_empty(), "{}", cycles.into_values().collect::<String>());
    }
}

#[test]
fn the_protocol_crate_keeps_its_wall() {
    let manifest: toml::Table =
        fs::read_to_string(root().join("protocol/Cargo.toml")).unwrap().parse().unwrap();
    let dependencies: Vec<&str> =
        manifest["dependencies"].as_table().unwrap().keys().map(String::as_str).collect();
    assert_eq!(dependencies, PROTOCOL_DEPENDENCIES);
    let banned =
        ["std::net", "std::fs", "std::thread", "std::time::Instant", "SystemTime", "HashMap", "HashSet"];
    for (file, text) in rust_files("protocol/src") {
        for (number, line) in shipped(&file, &text) {
            for word in banned {
                let reason = "the core is deterministic and does no I/O";
                assert!(!line.contains(word), "{file}:{number} uses {word}: {reason}");
            }
        }
    }
}

#[test]
fn the_checker_does_not_know_what_it_checks() {
    let manifest: toml::Table =
        fs::read_to_string(root().join("tests/checker/Cargo.toml")).unwrap().parse().unwrap();
    for section in ["dependencies", "dev-dependencies"] {
        let Some(dependencies) = manifest.get(section).and_then(toml::Value::as_table) else { continue };
        let own: Vec<_> = dependencies.keys().filter(|name| name.starts_with("oncewire")).collect();
        assert!(own.is_empty(), "{section}: {own:?}");
    }
}

#[test]
fn files_stay_short() {
    for folder in ["src", "protocol", "tests"] {
        for (file, text) in rust_files(folder) {
            let lines = text.lines().count();
            assert!(lines <= FILE_LINES_MAX, "{file} has {lines} lines");
            let has_reason = LONG_FILES.iter().any(|(name, _)| *name == file);
            assert!(
                has_reason == (lines > FILE_LINES_REASON),
                "{file} has {lines} lines: over {FILE_LINES_REASON} it needs a reason in LONG_FILES, else none"
            );
        }
    }
}

#[test]
fn no_unwrap_and_no_leftovers_outside_tests() {
    let banned =
        [".unwrap()", ".expect(", "panic!(", "todo!(", "unimplemented!(", "dbg!(", "TODO", "FIXME", "XXX"];
    let mut wrong = Vec::new();
    for folder in ["src", "protocol/src"] {
        for (file, text) in rust_files(folder) {
            for (number, line) in shipped(&file, &text) {
                for word in banned.iter().filter(|word| line.contains(**word)) {
                    wrong.push(format!("{file}:{number}: {word}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
