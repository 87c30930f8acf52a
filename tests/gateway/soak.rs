//! The program under load and faults for a while, judged by the checker.

use std::path::PathBuf;
use std::time::Duration;

use oncewire_soak::{Fast, Gateway, GatewayCommand, Patient, Round, judge, run};

fn in_memory() -> GatewayCommand {
    GatewayCommand {
        binary: PathBuf::from(env!("CARGO_BIN_EXE_oncewire")),
        arguments: vec!["--store=memory".to_owned()],
    }
}

#[tokio::test]
async fn clients_whose_sockets_are_cut_lose_repeat_and_reorder_nothing() {
    let mut gateway = Gateway::start(in_memory()).await.unwrap();
    let round = Round { outcomes_min: 2_000, seed: 1, ..Round::default() };
    let report = run(&mut gateway, &round).await.unwrap();
    judge(&report).unwrap();
    assert!(report.cuts > 0 && report.counts.resumed > 0, "{report}");
    gateway.stop().await.unwrap();
}

#[tokio::test]
async fn a_gateway_that_forgets_its_sessions_does_not_pass() {
    let mut gateway = Gateway::start(in_memory()).await.unwrap();
    let round = Round { kills: 1, clients: 4, outcomes_min: 50, seed: 2, ..Round::default() };
    let error = run(&mut gateway, &round).await.err().unwrap();
    assert!(format!("{error:#}").contains("is lost"), "{error:#}");
}

#[tokio::test]
async fn gateways_that_are_killed_lose_repeat_and_reorder_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_oncewire"));
    let fast = Fast { subscribers: 3, publishes_per_second: 500, haste: 5 };
    let configuration = directory.path().join("oncewire.toml");
    std::fs::write(&configuration, fast.configuration()).unwrap();
    let mut command = GatewayCommand::on_disk(&binary, &directory.path().join("data"), "sync");
    command.arguments.extend(["--config".to_owned(), configuration.display().to_string()]);
    let mut gateway = Gateway::start(command).await.unwrap();
    let round = Round {
        kills: 15,
        stops_permille: 250,
        // Sometimes long enough for a mark to be due and to be in the log before the kill.
        run_more: Duration::from_millis(1_800),
        rest_ms_max: 50,
        fast: Some(fast),
        seed: 3,
        ..Round::default()
    };
    let report = run(&mut gateway, &round).await.unwrap();
    judge(&report).unwrap();
    assert!(report.counts.resumed >= 15 && report.stops > 0, "{report}");
    let redelivered = report.redelivered.unwrap();
    assert!(redelivered.remembered > 0 && redelivered.eager.count > 0, "{report}");
    gateway.stop().await.unwrap();
}

#[tokio::test]
async fn a_client_that_acknowledges_every_5_s_is_kept_by_the_default_bounds() {
    let mut gateway = Gateway::start(in_memory()).await.unwrap();
    let cut_every = Some(Duration::from_millis(700));
    for (hub, cut_every) in [("one_socket", None), ("cut", cut_every)] {
        let report =
            Patient { hub, publishes_per_second: 500, seconds: 2, cut_every }.run(&gateway).await.unwrap();
        assert!(report.is_ok(), "{report}\n{}", report.verdict);
        assert_eq!((report.sent, report.delivered), (1_000, 1_000));
        assert_eq!(report.cuts > 0, cut_every.is_some(), "{report}");
    }
    gateway.stop().await.unwrap();
}

#[tokio::test]
async fn bounds_below_what_such_a_client_leaves_unacknowledged_show_in_its_report() {
    let directory = tempfile::tempdir().unwrap();
    let configuration = directory.path().join("oncewire.toml");
    std::fs::write(&configuration, "outbox_messages_max = 100\n").unwrap();
    let mut command = in_memory();
    command.arguments.extend(["--config".to_owned(), configuration.display().to_string()]);
    let mut gateway = Gateway::start(command).await.unwrap();
    let report = Patient { hub: "h", publishes_per_second: 500, seconds: 2, cut_every: None }
        .run(&gateway)
        .await
        .unwrap();
    assert!(!report.is_ok() && report.failure.is_some() && report.counts.closed > 0, "{report}");
    gateway.stop().await.unwrap();
}
