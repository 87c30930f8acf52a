//! What Linux tells about processes and the machine, read from `/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;

/// On-CPU time of each thread of a process at one moment, in nanoseconds by thread id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuTime(BTreeMap<u32, u64>);

impl CpuTime {
    /// Reads the scheduler's account of every thread of process `pid`. It is exact to the nanosecond, unlike the
    /// ticks of `/proc/PID/stat`.
    ///
    /// # Errors
    /// The process is gone, or the kernel keeps no such account.
    pub fn of_process(pid: u32) -> Result<Self> {
        let directory = format!("/proc/{pid}/task");
        let mut threads = BTreeMap::new();
        for entry in fs::read_dir(&directory).with_context(|| format!("cannot read {directory}"))? {
            let path = entry?.path();
            // A thread that ended since the directory was listed has no file any more.
            let Ok(account) = fs::read_to_string(path.join("schedstat")) else { continue };
            let thread = path.file_name().and_then(|name| name.to_str()).context("odd thread name")?;
            threads.insert(thread.parse()?, parse_schedstat(&account)?);
        }
        anyhow::ensure!(!threads.is_empty(), "no thread of process {pid} has a schedstat file");
        Ok(Self(threads))
    }

    /// CPU time used since `earlier`. What threads used that ended in between is not in it.
    pub fn since(&self, earlier: &Self) -> Duration {
        let used =
            |(thread, now): (&u32, &u64)| now.saturating_sub(earlier.0.get(thread).copied().unwrap_or(0));
        Duration::from_nanos(self.0.iter().map(used).sum())
    }
}

/// Resident memory of a process, in bytes.
///
/// # Errors
/// The process is gone.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    parse_status_bytes(&fs::read_to_string(format!("/proc/{pid}/status"))?, "VmRSS:")
}

/// The most memory that was ever resident of a process, in bytes.
///
/// # Errors
/// The process is gone.
pub fn resident_bytes_max(pid: u32) -> Result<u64> {
    parse_status_bytes(&fs::read_to_string(format!("/proc/{pid}/status"))?, "VmHWM:")
}

/// How many bytes this process has had written to disks, in bytes.
///
/// # Errors
/// The kernel keeps no such account.
pub fn written_bytes() -> Result<u64> {
    let account = fs::read_to_string("/proc/self/io").context("cannot read /proc/self/io")?;
    let bytes = account.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    Ok(bytes.context("/proc/self/io does not say write_bytes")?.parse()?)
}

/// The machine a figure was taken on.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    pub cpu_model: String,
    pub cores: usize,
    pub kernel: String,
    /// Runnable threads averaged over the last minute, when the benchmark began: above the number of cores, others
    /// were using the machine.
    pub load_average: String,
}

impl Machine {
    /// Describes this machine.
    ///
    /// # Errors
    /// `/proc` is not readable.
    pub fn describe() -> Result<Self> {
        let cpus = fs::read_to_string("/proc/cpuinfo")?;
        let (cpu_model, cores) = parse_cpuinfo(&cpus);
        let load = fs::read_to_string("/proc/loadavg")?;
        Ok(Self {
            cpu_model,
            cores,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            load_average: load.split_whitespace().next().unwrap_or_default().to_owned(),
        })
    }
}

fn parse_schedstat(account: &str) -> Result<u64> {
    let on_cpu = account.split_whitespace().next().context("empty schedstat")?;
    Ok(on_cpu.parse()?)
}

fn parse_status_bytes(status: &str, name: &'static str) -> Result<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).context(name)?;
    let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kilobytes * 1024)
}

fn parse_cpuinfo(cpus: &str) -> (String, usize) {
    let values = |name: &'static str| {
        cpus.lines()
            .filter_map(|line| line.split_once(':'))
            .filter(move |(key, _)| key.trim() == name)
            .map(|(_, value)| value.trim().to_owned())
    };
    (values("model name").next().unwrap_or_else(|| "unknown".to_owned()), values("processor").count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernels_formats() {
        assert_eq!(parse_schedstat("539908335 6960131 118\n").unwrap(), 539_908_335);
        let status = "VmPeak:\t 50000 kB\nVmHWM:\t 4096 kB\nVmRSS:\t    2048 kB\n";
        assert_eq!(parse_status_bytes(status, "VmRSS:").unwrap(), 2 << 20);
        assert_eq!(parse_status_bytes(status, "VmHWM:").unwrap(), 4 << 20);
        assert!(parse_status_bytes(status, "VmSwap:").is_err());
        let cpus = "processor\t: 0\nmodel name\t: Fast One\n\nprocessor\t: 1\nmodel name\t: Fast One\n";
        assert_eq!(parse_cpuinfo(cpus), ("Fast One".to_owned(), 2));
    }

    #[test]
    fn cpu_time_counts_threads_that_began_in_between() {
        let earlier = CpuTime(BTreeMap::from([(1, 100), (2, 50)]));
        let later = CpuTime(BTreeMap::from([(1, 130), (3, 7)]));
        assert_eq!(later.since(&earlier), Duration::from_nanos(37));
    }

    #[test]
    fn this_process_uses_cpu_time_and_memory() {
        let pid = std::process::id();
        let before = CpuTime::of_process(pid).unwrap();
        let mut sum = 0_u64;
        while CpuTime::of_process(pid).unwrap().since(&before).is_zero() {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(resident_bytes(pid).unwrap() > 0);
        assert!(resident_bytes_max(pid).unwrap() >= resident_bytes(pid).unwrap());
    }
}
