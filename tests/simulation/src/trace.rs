//! What happened, as a hash and, if wanted, as lines to read.

use std::fmt;
use std::io::Write;

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// See the module.
#[derive(Default)]
pub struct Trace {
    hash: u64,
    output: Option<Box<dyn Write>>,
}

impl Trace {
    /// A trace that also writes lines.
    pub fn readable(output: Box<dyn Write>) -> Self {
        Self { hash: 0, output: Some(output) }
    }

    /// Takes numbers into the hash.
    pub fn step(&mut self, numbers: [u64; 4]) {
        let mut bytes = [0; 32];
        for (chunk, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            chunk.copy_from_slice(&number.to_le_bytes());
        }
        self.bytes(&bytes);
    }

    /// Takes bytes into the hash.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.hash = xxh3_64_with_seed(bytes, self.hash);
    }

    /// Writes a line, if lines are wanted.
    pub fn line(&mut self, now_us: u64, text: impl FnOnce() -> String) {
        if let Some(output) = &mut self.output {
            // A reader that is gone is no reason to fail.
            let _ = writeln!(output, "{:>10.3} ms  {}", now_us as f64 / 1000.0, text());
        }
    }

    /// The hash of everything so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trace({:016x})", self.hash)
    }
}
