//! Order statistics of a few measured values.

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

#[cfg(test)]
mod tests {
    use super::*;

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
