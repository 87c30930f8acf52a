//! How results are written: JSON for programs on standard output, tables for people on standard error.

use std::io::{self, Write};

use anyhow::Result;
use serde::Serialize;

use crate::procfs::Machine;
use crate::stats::Summary;

/// The command that this process was started by.
pub fn command_line() -> String {
    std::env::args().collect::<Vec<_>>().join(" ")
}

/// Prints `report` as JSON on standard output.
///
/// # Errors
/// Standard output is closed.
pub fn print_json(report: &impl Serialize) -> Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, report)?;
    Ok(writeln!(out)?)
}

/// Writes what stands above a table: what it is about, the machine, and the columns.
///
/// # Errors
/// `out` is closed.
pub fn write_titles(out: &mut impl Write, about: &str, machine: &Machine) -> Result<()> {
    let Machine { cpu_model, cores, kernel, load_average } = machine;
    writeln!(out, "\n{about}")?;
    writeln!(out, "{cpu_model}, {cores} cores, Linux {kernel}, load {load_average}")?;
    write!(out, "{:<16}{:<9}", "", "")?;
    let titles = ["minimum", "quartile", "median", "quartile", "maximum"];
    titles.iter().try_for_each(|title| write!(out, "{title:>10}"))?;
    Ok(writeln!(out)?)
}

/// Writes one row of a table.
///
/// # Errors
/// `out` is closed.
pub fn write_row(
    out: &mut impl Write,
    name: &str,
    side: &str,
    summary: &Summary,
    decimals: usize,
) -> Result<()> {
    write!(out, "{name:<16}{side:<9}")?;
    let Summary { minimum, lower_quartile, median, upper_quartile, maximum } = summary;
    for value in [minimum, lower_quartile, median, upper_quartile, maximum] {
        write!(out, "{value:>10.decimals$}")?;
    }
    Ok(writeln!(out)?)
}
