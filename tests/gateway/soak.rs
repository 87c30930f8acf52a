//! The program under load and faults for a while, judged by the checker.

use std::path::PathBuf;

use oncewire_soak::{Gateway, GatewayCommand, Round, judge, run};

fn in_memory() -> GatewayCommand {
    GatewayCommand {
        binary: PathBuf::from(env!("CARGO_BIN_EXE_oncewire")),
        arguments: vec!["--store=memory".to_owned()],
    }
}

#[tokio::test]
async fn clients_whose_sockets_are_cut_lose_repeat_and_reorder_nothing() {
    let mut gateway = Gateway::start(in_memory()).await.unwrap();
    let round = Round { kills: 0, clients: 6, outcomes_min: 2_000, seed: 1 };
    let report = run(&mut gateway, &round).await.unwrap();
    judge(&report).unwrap();
    assert!(report.cuts > 0 && report.counts.resumed > 0, "{report}");
    gateway.stop().await.unwrap();
}

#[tokio::test]
async fn a_gateway_that_forgets_its_sessions_does_not_pass() {
    let mut gateway = Gateway::start(in_memory()).await.unwrap();
    let round = Round { kills: 1, clients: 4, outcomes_min: 50, seed: 2 };
    let error = run(&mut gateway, &round).await.err().unwrap();
    assert!(format!("{error:#}").contains("is lost"), "{error:#}");
}

#[tokio::test]
async fn gateways_that_are_killed_lose_repeat_and_reorder_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_oncewire"));
    let command = GatewayCommand::on_disk(&binary, &directory.path().join("data"), "sync");
    let mut gateway = Gateway::start(command).await.unwrap();
    let round = Round { kills: 15, clients: 6, outcomes_min: 30, seed: 3 };
    let report = run(&mut gateway, &round).await.unwrap();
    judge(&report).unwrap();
    assert!(report.counts.resumed >= 15, "{report}");
    gateway.stop().await.unwrap();
}
