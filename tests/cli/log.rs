//! `oncewire log`: what it says of a hub, and one hub among others.

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
        assert_eq!(
            (code, stdout.contains("hub other: "), stdout.contains("chat")),
            (1, true, false),
            "{stdout}"
        );
    }
    let (code, stdout, stderr) = log(directory.path(), &["new-epoch", "--hub", "other"]);
    assert_eq!(
        (code, stdout.as_str()),
        (0, "hub other: empty, in a new epoch; sessions from before are refused\n"),
        "{stderr}"
    );
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

/// The epoch of the hub `chat`.
fn epoch(directory: &Path) -> String {
    let (code, stdout, stderr) = log(directory, &["inspect", "--hub", "chat"]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    stdout.lines().find(|line| line.contains("epoch ")).unwrap().to_owned()
}

/// Moves a copy to where the commands expect the data.
fn put_in_place(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    std::fs::rename(from, to.join("data")).unwrap();
}

#[test]
fn a_running_gateway_copies_its_data_and_the_copy_goes_on_as_another() {
    let directory = tempfile::tempdir().unwrap();
    serve_once(directory.path());
    let original = epoch(directory.path());
    let running = Running::start(&mut oncewire_in(directory.path(), &["dev", "--listen", "127.0.0.1:0"]));
    running.line_with("demo page: ");
    let socket = directory.path().join("data/control");
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let (code, stdout, stderr) = log(directory.path(), &["copy", "--to", "backup"]);
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    assert!(
        stdout.contains("hub chat: copied, 3 records") && stdout.contains("begins a new epoch"),
        "{stdout}"
    );
    // It is not made over another one.
    let (code, _, stderr) = log(directory.path(), &["copy", "--to", "backup"]);
    assert_eq!((code, stderr.contains("backup: it is not empty")), (1, true), "{stderr}");
    let (code, _, stderr) = log(directory.path(), &["copy", "--to", "data/backup"]);
    assert_eq!((code, stderr.contains("it is within the directory")), (1, true), "{stderr}");
    running.signal("TERM");
    assert_eq!(running.end().0, Some(0));
    assert!(!socket.exists());
    assert_eq!(epoch(directory.path()), original);

    let restored = directory.path().join("restored");
    put_in_place(&directory.path().join("backup"), &restored);
    let (code, stdout, stderr) = log(&restored, &["verify"]);
    assert_eq!(
        (code, stdout.contains("hub chat: 3 records, 0 checkpoints, 1 sessions: ok")),
        (0, true),
        "{stdout}{stderr}"
    );
    assert_eq!(epoch(&restored), original, "looking begins nothing");
    let (_, stdout, _) = log(&restored, &["inspect"]);
    assert!(stdout.contains("a copy: its first start begins a new epoch"), "{stdout}");
    let running = Running::start(&mut oncewire_in(
        &restored,
        &["dev", "--listen", "127.0.0.1:0", "--log-format", "json"],
    ));
    running.line_with("demo page: ");
    // A hub that was kept is started without being asked for.
    while has_records_of_before_only(&restored) {
        std::thread::sleep(Duration::from_millis(10));
    }
    running.signal("TERM");
    assert_eq!(running.end().0, Some(0));
    assert_ne!(epoch(&restored), original);
    let (_, stdout, _) = log(&restored, &["verify"]);
    assert!(stdout.contains("0 sessions: ok"), "{stdout}");
}

/// Whether the gateway over a copy has not started its hub yet, as a copy of that tells.
fn has_records_of_before_only(directory: &Path) -> bool {
    let looked_at = directory.join("looked-at");
    let (code, stdout, stderr) = log(directory, &["copy", "--to", "looked-at"]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    std::fs::remove_dir_all(&looked_at).unwrap();
    stdout.contains("hub chat: copied, 3 records")
}

#[test]
fn a_directory_that_nobody_uses_is_copied_and_one_that_is_no_copy_is_kept_in_a_new_epoch() {
    let directory = tempfile::tempdir().unwrap();
    serve_once(directory.path());
    let (code, stdout, stderr) = log(directory.path(), &["copy", "--to", "backup"]);
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    let (code, stdout, _) = log(directory.path(), &["new-epoch", "--keep"]);
    assert_eq!(
        (code, stdout.as_str()),
        (0, "hub chat: the next start begins a new epoch; sessions from before are refused\n")
    );
    let (_, stdout, _) = log(directory.path(), &["inspect"]);
    assert!(stdout.contains("a copy: its first start begins a new epoch"), "{stdout}");
    assert!(stdout.contains("sessions opened: 1"), "{stdout}");
}

#[test]
fn a_copy_that_was_not_finished_is_refused_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    serve_once(directory.path());
    std::fs::remove_file(directory.path().join("data/format")).unwrap();
    std::fs::write(directory.path().join("data/copying"), "").unwrap();
    let mut dev = oncewire_in(directory.path(), &["dev", "--listen", "127.0.0.1:0"]);
    let mut inspect = oncewire_in(directory.path(), &["log", "inspect", "--data-dir", "data"]);
    for command in [&mut dev, &mut inspect] {
        let (code, stdout, stderr) = finish(command);
        assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
        assert!(
            stderr.contains("data is a copy that was not finished") && stderr.contains("make it again"),
            "{stderr}"
        );
    }
}

#[test]
fn a_damaged_hub_is_named_by_a_copy_that_lacks_it() {
    let directory = tempfile::tempdir().unwrap();
    serve_once(directory.path());
    copy_hub(directory.path());
    std::fs::write(directory.path().join("data/hubs/other/meta.redb"), "nonsense").unwrap();
    let (code, stdout, stderr) = log(directory.path(), &["copy", "--to", "backup"]);
    assert!(
        stdout.contains("hub chat: copied") && stdout.contains("hub other: not in the copy: "),
        "{stdout}"
    );
    assert_eq!(
        (code, stderr.as_str()),
        (1, "oncewire: not in the copy, since they are damaged: 1 of the hubs\n")
    );
    put_in_place(&directory.path().join("backup"), &directory.path().join("restored"));
    let (code, stdout, _) = log(&directory.path().join("restored"), &["verify"]);
    assert_eq!((code, stdout.lines().count()), (0, 1), "{stdout}");
}

#[test]
fn a_log_can_be_inspected_verified_and_given_a_new_epoch() {
    let directory = tempfile::tempdir().unwrap();
    let log = |command: &str| log(directory.path(), &[command]);
    for command in ["inspect", "verify", "new-epoch"] {
        let (code, _, stderr) = log(command);
        assert_eq!(code, 1, "{command} of a directory that is not there");
        assert!(stderr.contains("data"), "{stderr}");
    }
    assert!(!directory.path().join("data").exists());

    serve_once(directory.path());
    let (code, before, _) = log("inspect");
    assert_eq!(code, 0);
    for word in [
        "hub chat: ok",
        "epoch ",
        "sessions opened: 1, ",
        "segment 00000000000000000000.redb: offsets 0 to before ",
    ] {
        assert!(before.contains(word), "{word}: {before}");
    }
    let (code, verified, _) = log("verify");
    assert_eq!(
        (code, verified.contains("hub chat: 2 records, 0 checkpoints, 1 sessions: ok")),
        (0, true),
        "{verified}"
    );

    let (code, told, _) = log("new-epoch");
    assert_eq!((code, told.contains("hub chat: empty, in a new epoch")), (0, true), "{told}");
    let (_, after, _) = log("inspect");
    let epoch = |text: &str| text.lines().find(|line| line.contains("epoch ")).unwrap().to_owned();
    assert_ne!(epoch(&before), epoch(&after));
    assert!(after.contains("records: 0"), "{after}");
}

#[test]
fn damage_in_a_log_is_found_and_its_place_named() {
    let directory = tempfile::tempdir().unwrap();
    serve_once(directory.path());
    let segment = directory.path().join("data/hubs/chat/00000000000000000000.redb");
    let mut bytes = std::fs::read(&segment).unwrap();
    let role = b"webpubsub.joinLeaveGroup";
    let places: Vec<_> = (0..bytes.len()).filter(|&at| bytes[at..].starts_with(role)).collect();
    assert!(!places.is_empty());
    places.iter().for_each(|&at| bytes[at] ^= 0xff);
    std::fs::write(&segment, bytes).unwrap();
    for command in ["inspect", "verify"] {
        let (code, stdout, stderr) = log(directory.path(), &[command]);
        assert_eq!(code, 1, "{stdout}{stderr}");
        assert!(stdout.contains("damaged: ") && stdout.contains("00000000000000000000.redb"), "{stdout}");
    }
}
