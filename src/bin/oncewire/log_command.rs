//! `oncewire log`: looks at a data directory that no gateway is using, or changes it.
//!
//! Knows: how what is stored is told to a person. Does not know: how it is stored.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};
use oncewire::admin::control::{Told, ask_for_copy};
use oncewire::store::{
    Found, HubCopied, HubReport, OfflineStore, StoreError, StoreErrorCause, new_epoch, remove_hub,
};
use oncewire::telemetry::{self, LogFormat};
use oncewire_protocol::log::{Body, Offset};
use oncewire_protocol::wire::HubName;

use crate::cli::{Copy, Hubs, Log, NewEpoch, OneHub};
use crate::failure::{Failure, print, runtime_failure, usage};
use crate::fold_check::sessions_after_fold;

/// How many records there are of each kind, and their bytes.
type Kinds = BTreeMap<&'static str, (u64, u64)>;

/// Runs one of the commands.
pub fn run(command: &Log) -> Result<(), Failure> {
    // What is passed over is told as the gateway tells it.
    telemetry::init(LogFormat::Text, "warn").map_err(usage)?;
    match command {
        Log::Inspect(hubs) => look(hubs, |_, hub, kinds, report| (summary(hub, kinds, report), None)),
        Log::Verify(hubs) => look(hubs, verify),
        Log::NewEpoch(NewEpoch { hubs, keep }) => begin_epoch(hubs, *keep),
        Log::Copy(Copy { directory, to }) => copy(&directory.path, to),
        Log::Remove(OneHub { directory, hub }) => {
            remove_hub(&directory.path, hub).map_err(runtime_failure)?;
            print(&format!("hub {hub}: removed"))
        }
    }
}

/// A line about a hub, and what is wrong with its fold.
fn verify(store: &OfflineStore, hub: &HubName, _: &Kinds, report: &HubReport) -> (String, Option<String>) {
    let records = HumanCount(records(report));
    let checkpoints = HumanCount(report.checkpoints);
    let read = format!("hub {hub}: {records} records, {checkpoints} checkpoints");
    if !report.damages.is_empty() {
        return (format!("{read}: {}", verdict(report)), None);
    }
    let end = report.segments.last().map_or(Offset(0), |segment| segment.end);
    match sessions_after_fold(store, hub, end) {
        Ok(sessions) => {
            (format!("{read}, {} sessions: {}", HumanCount(sessions as u64), verdict(report)), None)
        }
        Err(error) => (format!("{read}: damaged"), Some(format!("the checkpoints of hub {hub}: {error}"))),
    }
}

fn begin_epoch(Hubs { directory, only }: &Hubs, keep: bool) -> Result<(), Failure> {
    let hubs = new_epoch(&directory.path, only.as_ref(), keep).map_err(runtime_failure)?;
    for hub in &hubs {
        let told = if keep {
            "the next start begins a new epoch; sessions from before are refused"
        } else {
            "empty, in a new epoch; sessions from before are refused"
        };
        print(&format!("hub {hub}: {told}"))?;
    }
    if hubs.is_empty() { print("there is no hub") } else { Ok(()) }
}

/// Makes a copy, or has it made by whoever uses the directory.
fn copy(directory: &Path, to: &Path) -> Result<(), Failure> {
    // A gateway that makes it may have been started elsewhere.
    let to = std::path::absolute(to).map_err(runtime_failure)?;
    let mut left_out = 0;
    let mut tell = |hub: &str, told: Told| {
        let told = match told {
            Told::Copied(records) => format!("copied, {} records", HumanCount(records)),
            Told::LeftOut(why) => {
                left_out += 1;
                format!("not in the copy: {why}")
            }
        };
        // The copy is worth more than the words.
        let _ = print(&format!("hub {hub}: {told}"));
    };
    match OfflineStore::open(directory) {
        Ok(store) => {
            let told = |hub: &HubName, copied| match copied {
                HubCopied::Whole(records) => tell(hub.as_str(), Told::Copied(records)),
                HubCopied::LeftOut(cause) => tell(hub.as_str(), Told::LeftOut(cause.to_string())),
            };
            store.copy(&to, told).map_err(runtime_failure)?;
        }
        Err(StoreError { cause: StoreErrorCause::Locked(_), .. }) => {
            ask_for_copy(directory, &to, &mut tell).map_err(runtime_failure)?;
        }
        Err(error) => return Err(runtime_failure(error)),
    }
    if left_out > 0 {
        return Err(Failure::Runtime(anyhow::anyhow!(
            "not in the copy, since they are damaged: {left_out} of the hubs"
        )));
    }
    print(&format!(
        "copied to {}; its first start begins a new epoch, and sessions from before are refused",
        to.display()
    ))
}

/// Reads everything, and tells of each hub what `tell` makes of it.
fn look(
    Hubs { directory, only }: &Hubs,
    tell: impl Fn(&OfflineStore, &HubName, &Kinds, &HubReport) -> (String, Option<String>),
) -> Result<(), Failure> {
    let store = OfflineStore::open(&directory.path).map_err(runtime_failure)?;
    let hubs = store.hubs(only.as_ref()).map_err(runtime_failure)?;
    if hubs.is_empty() {
        return print("there is no hub");
    }
    let progress = progress_bar(&store, &hubs).map_err(runtime_failure)?;
    let mut damages = 0;
    for hub in &hubs {
        let mut kinds = Kinds::new();
        let report = store.read(hub, |found| match found {
            Found::Record(_, record) => {
                let (count, bytes) = kinds.entry(kind(&record.body)).or_default();
                *count += 1;
                *bytes += record.encode().len() as u64;
            }
            Found::Progress(bytes) => progress.inc(bytes),
            Found::Checkpoint(..) => {}
        });
        let (told, wrong) = tell(&store, hub, &kinds, &report);
        let wrong: Vec<_> = report.damages.iter().map(ToString::to_string).chain(wrong).collect();
        damages += wrong.len();
        progress.suspend(|| {
            print(&told)?;
            wrong.iter().try_for_each(|damage| print(&format!("  damaged: {damage}")))
        })?;
    }
    progress.finish_and_clear();
    if damages > 0 {
        return Err(Failure::Runtime(anyhow::anyhow!("damaged places: {damages}")));
    }
    Ok(())
}

/// Shown on a terminal only.
fn progress_bar(store: &OfflineStore, hubs: &[HubName]) -> Result<ProgressBar, StoreError> {
    let bytes = hubs.iter().map(|hub| store.file_bytes(hub)).sum::<Result<u64, _>>()?;
    let style = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes}, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    Ok(ProgressBar::new(bytes).with_style(style))
}

fn summary(hub: &HubName, kinds: &Kinds, report: &HubReport) -> String {
    let mut text = format!("hub {hub}: {}", verdict(report));
    // Writing into a string does not fail.
    if let Some(epoch) = report.epoch {
        let _ = write!(text, "\n  epoch {:032x}", epoch.0);
    }
    if report.is_copy {
        let _ = write!(text, "\n  a copy: its first start begins a new epoch and ends its sessions");
    }
    if report.is_unsynced {
        let _ = write!(text, "\n  may hold what no sync has reached: it starts empty after a loss of power");
    }
    let _ = write!(
        text,
        "\n  checkpoints: {}, {} in a file of {}",
        HumanCount(report.checkpoints),
        HumanBytes(report.checkpoint_bytes),
        HumanBytes(report.meta_file_bytes)
    );
    let _ = write!(text, "\n  records: {}", HumanCount(records(report)));
    for (kind, (count, bytes)) in kinds {
        let _ = write!(text, "\n    {kind}: {}, {} bytes", HumanCount(*count), HumanCount(*bytes));
    }
    for segment in &report.segments {
        let _ = write!(
            text,
            "\n  segment {}: offsets {} to before {}, {} groups, {} of records in a file of {}",
            segment.file.file_name().unwrap_or_default().display(),
            segment.first.0,
            segment.end.0,
            HumanCount(segment.groups),
            HumanBytes(segment.record_bytes),
            HumanBytes(segment.file_bytes)
        );
    }
    text
}

fn records(report: &HubReport) -> u64 {
    report.segments.iter().map(|segment| segment.end.0 - segment.first.0).sum()
}

fn verdict(report: &HubReport) -> &'static str {
    if report.damages.is_empty() { "ok" } else { "damaged" }
}

fn kind(body: &Body) -> &'static str {
    match body {
        Body::Booted { .. } => "boots",
        Body::Opened(_) => "sessions opened",
        Body::Joined { .. } => "joins",
        Body::Left { .. } => "leaves",
        Body::Published(_) => "publishes",
        Body::Granted { .. } => "permissions granted",
        Body::Revoked { .. } => "permissions revoked",
        Body::Ended { .. } => "sessions ended",
        Body::Sent(_) => "messages of the application",
        Body::Added { .. } => "additions to groups",
        Body::Removed { .. } => "removals from groups",
        Body::Closed { .. } => "closes by the application",
        Body::Handled { .. } => "events handled",
        Body::Acked { .. } => "sequence acks",
        Body::Told { .. } => "ends told to the application",
        Body::NodeStarted(_) => "gateways started",
        Body::NodeGone(_) => "gateways gone",
        Body::Attached { .. } => "sessions attached",
        Body::Released { .. } => "sessions released",
        Body::Refused(_) => "refusals that are remembered",
    }
}
