//! `oncewire-check FILE...`: judges recorded histories. Exit code 0: no promise was broken; 1: some were; 2: the
//! files are not a history.

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use oncewire_checker::{History, ReadError, Verdict, check};

/// Judges what publishers and subscribers of a Web PubSub service saw.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// JSON-lines files, one for each recorder; the format is described in the documentation of the crate
    /// oncewire-checker.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Print the whole verdict as one JSON object.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let history = match read(&arguments.files) {
        Ok(history) => history,
        Err(error) => {
            let _ = writeln!(io::stderr(), "oncewire-check: {error}");
            return ExitCode::from(2);
        }
    };
    let verdict = check(&history);
    if let Err(error) = print(&verdict, arguments.json) {
        let _ = writeln!(io::stderr(), "oncewire-check: {error}");
        return ExitCode::from(2);
    }
    match (verdict.malformed_count, verdict.is_ok()) {
        (0, true) => ExitCode::SUCCESS,
        (0, false) => ExitCode::from(1),
        _ => ExitCode::from(2),
    }
}

fn read(files: &[PathBuf]) -> Result<History, ReadError> {
    let mut history = History::new();
    for path in files {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|source| ReadError::Io { recorder: name.clone(), source })?;
        history.read(&name, BufReader::new(file))?;
    }
    Ok(history)
}

fn print(verdict: &Verdict, json: bool) -> io::Result<()> {
    let mut output = io::stdout().lock();
    if json {
        serde_json::to_writer(&mut output, verdict)?;
        return writeln!(output);
    }
    write!(output, "{verdict}")
}
