//! Hands every file of the corpora to the functions that the fuzz targets call.

use std::fs;
use std::path::{Path, PathBuf};

use oncewire_fuzz::TARGETS;

#[test]
fn every_file_of_every_corpus_passes() {
    for (name, target) in TARGETS {
        let folder = corpora().join(name);
        let mut files: Vec<PathBuf> =
            fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        assert!(!files.is_empty(), "{} is empty", folder.display());
        for file in files {
            println!("{name} {}", file.display());
            target(&fs::read(&file).unwrap());
        }
    }
}

/// Corpora are minimised before they are committed: what every test run replays stays small.
#[test]
fn the_corpora_stay_small() {
    const FILES_MAX: usize = 300;
    const BYTES_MAX: u64 = 1_000_000;
    let sizes: Vec<u64> = TARGETS
        .iter()
        .flat_map(|(name, _)| fs::read_dir(corpora().join(name)).unwrap())
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .collect();
    let bytes: u64 = sizes.iter().sum();
    assert!(sizes.len() < FILES_MAX && bytes < BYTES_MAX, "{} files, {bytes} bytes", sizes.len());
}

/// Each target has its one line for libFuzzer, and each corpus its target.
#[test]
fn targets_and_corpora_agree() {
    let names = |folder: PathBuf| {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    };
    let mut expected: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    expected.sort_unstable();
    assert_eq!(names(corpora()), expected);
    assert_eq!(names(Path::new(env!("CARGO_MANIFEST_DIR")).join("targets/fuzz_targets")), expected);
}

fn corpora() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}
