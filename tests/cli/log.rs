//! `oncewire log`: one hub among others.

use super::*;

fn log(directory: &Path, arguments: &[&str]) -> (i32, String, String) {
    let mut all = vec!["log"];
    all.extend(arguments);
    all.extend(["--data-dir", "data"]);
    finish(&mut oncewire_in(directory, &all))
}

/// Makes the hub `other` of the hub `chat`.
fn copy_hub(directory: &Path) {
    let hubs = directory.join("data/hubs");
    std::fs::create_dir(hubs.join("other")).unwrap();
    for entry in std::fs::read_dir(hubs.join("chat")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), hubs.join("other").join(entry.file_name())).unwrap();
    }
}

#[test]
fn a_damaged_hub_is_looked_at_renewed_and_removed_without_the_others() {
    let directory = tempfile::tempdir().unwrap();
    serve_once(directory.path());
    copy_hub(directory.path());
    std::fs::write(directory.path().join("data/hubs/other/meta.redb"), "nonsense").unwrap();
    for command in ["inspect", "verify"] {
        let (code, stdout, _) = log(directory.path(), &[command, "--hub", "chat"]);
        assert_eq!((code, stdout.contains("other")), (0, false), "{stdout}");
        let (code, stdout, _) = log(directory.path(), &[command, "--hub", "OTHER"]);
        assert_eq!((code, stdout.contains("hub other: "), stdout.contains("chat")), (1, true, false), "{stdout}");
    }
    let (code, stdout, stderr) = log(directory.path(), &["new-epoch", "--hub", "other"]);
    assert_eq!((code, stdout.as_str()), (0, "hub other: empty, in a new epoch; sessions from before are refused\n"), "{stderr}");
    let (_, stdout, _) = log(directory.path(), &["verify"]);
    assert!(stdout.contains("hub chat: 2 records") && stdout.contains("hub other: 0 records"), "{stdout}");

    std::fs::write(directory.path().join("data/hubs/other/meta.redb"), "nonsense").unwrap();
    let (code, stdout, stderr) = log(directory.path(), &["remove", "--hub", "other"]);
    assert_eq!((code, stdout.as_str()), (0, "hub other: removed\n"), "{stderr}");
    assert!(!directory.path().join("data/hubs/other").exists());
    let (code, stdout, _) = log(directory.path(), &["verify"]);
    assert_eq!((code, stdout.contains("hub chat: 2 records")), (0, true), "{stdout}");
}

#[test]
fn a_hub_that_is_not_there_is_named() {
    let directory = tempfile::tempdir().unwrap();
    serve_once(directory.path());
    for command in ["inspect", "verify", "new-epoch", "remove"] {
        let (code, stdout, stderr) = log(directory.path(), &[command, "--hub", "nobody"]);
        assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
        assert!(stderr.contains("there is no hub nobody in data"), "{stderr}");
        let (code, _, stderr) = log(directory.path(), &[command, "--hub", "no/hub"]);
        assert_eq!((code, stderr.contains("--hub")), (2, true), "{stderr}");
    }
    let (code, _, stderr) = log(directory.path(), &["remove"]);
    assert_eq!((code, stderr.contains("--hub")), (2, true), "{stderr}");
}

#[test]
fn the_gateway_and_the_commands_pass_over_what_is_not_theirs_and_say_so() {
    let directory = tempfile::tempdir().unwrap();
    serve_once(directory.path());
    for file in ["data/notes.txt", "data/hubs/notes.txt", "data/hubs/chat/notes.txt"] {
        std::fs::write(directory.path().join(file), "stray").unwrap();
    }
    std::fs::create_dir(directory.path().join("data/hubs/empty")).unwrap();
    let told = |log: &str| log.lines().filter(|line| line.contains("passed over")).count();
    for command in ["inspect", "verify"] {
        let (code, stdout, stderr) = log(directory.path(), &[command]);
        assert_eq!((code, told(&stderr)), (0, 4), "{stdout}{stderr}");
    }
    let running = Running::start(&mut oncewire_in(directory.path(), &["dev", "--listen", "127.0.0.1:0"]));
    running.line_with("demo page: ");
    running.signal("TERM");
    let (code, logged) = running.end();
    assert_eq!((code, told(&logged)), (Some(0), 4), "{logged}");
}
