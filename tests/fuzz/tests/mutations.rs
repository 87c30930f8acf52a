//! What the target `hub` checks is worth something: with a deliberate fault of the core switched on, its corpus fails.

use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

use oncewire_protocol::mutation::{Mutation, switch_on};

/// Of the faults, so many are seen. Not all can be: the target does not compare acks with messages, nor fingerprints,
/// its process folds its own boot before anything else, and its writers look for themselves. What is seen by a single
/// input may slip when the core changes; the simulation's checker has to see every one.
const SEEN_MIN: usize = 25;

#[test]
fn the_corpus_of_the_hub_sees_deliberate_faults() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/hub");
    let inputs: Vec<Vec<u8>> =
        fs::read_dir(folder).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap()).collect();
    let (seen, unseen): (Vec<Mutation>, Vec<Mutation>) = Mutation::ALL.iter().partition(|mutation| {
        switch_on(Some(**mutation));
        inputs.iter().any(|input| catch_unwind(|| oncewire_fuzz::hub(input)).is_err())
    });
    assert!(seen.len() >= SEEN_MIN, "not seen: {unseen:?}");
}
