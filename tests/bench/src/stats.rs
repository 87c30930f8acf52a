//! Order statistics of a few measured values.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Serialize;

/// Minimum, quartiles and maximum.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    pub minimum: f64,
    pub lower_quartile: f64,
    pub median: f64,
    pub upper_quartile: f64,
    pub maximum: f64,
}

impl Summary {
    /// Summarizes `values`; a quartile that falls between two of them is interpolated.
    ///
    /// # Errors
    /// There are no values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Result<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        ensure!(!sorted.is_empty(), "nothing was measured");
        sorted.sort_by(f64::total_cmp);
        let quantile = |fraction: f64| {
            let position = fraction * (sorted.len() - 1) as f64;
            let below = sorted[position.floor() as usize];
            let above = sorted[position.ceil() as usize];
            below + (above - below) * position.fract()
        };
        Ok(Self {
            minimum: quantile(0.0),
            lower_quartile: quantile(0.25),
            median: quantile(0.5),
            upper_quartile: quantile(0.75),
            maximum: quantile(1.0),
        })
    }
}

/// How long things took: half of them at most the median, 99 in 100 at most the next, all at most the last.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    pub count: usize,
    pub median_ms: f64,
    pub p99_ms: f64,
    pub maximum_ms: f64,
}

impl Latency {
    /// Summarizes times. Each figure is one of them: the least that so many are not above.
    ///
    /// # Errors
    /// There are none.
    pub fn of(mut times: Vec<Duration>) -> Result<Self> {
        ensure!(!times.is_empty(), "nothing was measured");
        times.sort_unstable();
        // In whole percents: 0.99 times a number is often a little above what it should be.
        let rank = |percent: usize| (times.len() * percent).div_ceil(100);
        let milliseconds = |percent| times[rank(percent).max(1) - 1].as_secs_f64() * 1e3;
        Ok(Self {
            count: times.len(),
            median_ms: milliseconds(50),
            p99_ms: milliseconds(99),
            maximum_ms: milliseconds(100),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_least_time_that_so_many_are_not_above() {
        let times = |count| (1..=count).rev().map(Duration::from_millis).collect::<Vec<_>>();
        let latency = Latency::of(times(200)).unwrap();
        assert_eq!(latency, Latency { count: 200, median_ms: 100.0, p99_ms: 198.0, maximum_ms: 200.0 });
        let odd = Latency::of(times(101)).unwrap();
        assert_eq!((odd.median_ms, odd.p99_ms, odd.maximum_ms), (51.0, 100.0, 101.0));
        let single = Latency::of(times(1)).unwrap();
        assert_eq!((single.median_ms, single.p99_ms, single.maximum_ms), (1.0, 1.0, 1.0));
        assert!(Latency::of(Vec::new()).is_err());
    }

    #[test]
    fn quartiles_of_nine_are_values() {
        let summary = Summary::of([9.0, 1.0, 8.0, 2.0, 7.0, 3.0, 6.0, 4.0, 5.0]).unwrap();
        let expected =
            Summary { minimum: 1.0, lower_quartile: 3.0, median: 5.0, upper_quartile: 7.0, maximum: 9.0 };
        assert_eq!(summary, expected);
    }

    #[test]
    fn quartiles_between_values_are_interpolated() {
        let summary = Summary::of([10.0, 20.0, 30.0, 40.0]).unwrap();
        assert_eq!((summary.lower_quartile, summary.median, summary.upper_quartile), (17.5, 25.0, 32.5));
        let single = Summary::of([7.0]).unwrap();
        assert_eq!((single.minimum, single.median, single.maximum), (7.0, 7.0, 7.0));
        assert!(Summary::of([]).is_err());
    }
}
