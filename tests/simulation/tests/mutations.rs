//! Each deliberate fault is caught. One that is not means that the world never comes where it matters, or that the checker
//! does not look there. That the same worlds pass without a fault is the test in `seeds.rs`.
//!
//! A fault is a patch in `mutations/`. Above the diff it says what is broken, and what has to catch it:
//! - `Caught within N worlds.`: the simulation, with the seeds from 0 on.
//! - `Caught by the test NAME.`: also a test of the protocol crate.
//!
//! To add one, change the code, write `git diff` into a file there, put the words above it, and take the change back.
//! When a patch does not apply any more, the code around it has changed: make the same fault in the new code.
//!
//! Patches are applied to a copy of the sources in the target directory, and built there. Every run checks that all
//! apply, and that three of them are caught, tomorrow the next three; `ONCEWIRE_SEED` chooses others, and
//! `ONCEWIRE_MUTATIONS=name,name` these. All of them, in about half an hour on two cores:
//!
//! ```sh
//! cargo test -p oncewire-simulation --test mutations -- --ignored --nocapture
//! ```

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};

/// So many are caught in every run.
const FEW: usize = 3;
/// Of the faults of the core, the corpora of `tests/fuzz` see so many. Not all can be seen: the target `hub` does not
/// compare acks with messages, nor fingerprints, its process folds its own boot before anything else, and its writers look
/// for themselves. What a single input sees may slip when the core changes; the simulation has to see every one.
const SEEN_BY_CORPORA_MIN: usize = 25;
/// What cargo is to resolve features for, always the same: else it would build the dependencies twice.
const PACKAGES: [&str; 4] = ["-p", "oncewire-simulation", "-p", "oncewire-fuzz"];

#[test]
fn every_mutation_applies() {
    let copy = SourceCopy::lock().unwrap();
    let mut wrong = Vec::new();
    for mutation in Mutation::all().unwrap() {
        wrong.extend(copy.apply(&mutation).err().map(|error| format!("{}: {error:#}", mutation.name)));
        copy.refresh().unwrap();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn some_mutations_are_caught() {
    let all = Mutation::all().unwrap();
    let chosen: Vec<&Mutation> = match env::var("ONCEWIRE_MUTATIONS") {
        Ok(names) => {
            let find = |name| all.iter().find(|mutation| mutation.name == name).expect(name);
            names.split(',').map(find).collect()
        }
        Err(_) => {
            let seed = seed().unwrap();
            println!("ONCEWIRE_SEED={seed}");
            all.iter().cycle().skip(seed as usize % all.len() * FEW % all.len()).take(FEW).collect()
        }
    };
    let copy = SourceCopy::lock().unwrap();
    for mutation in chosen {
        println!("{:32} {}", mutation.name, copy.catch(mutation).unwrap());
    }
}

/// What chooses the few: the day, unless another number is set.
fn seed() -> Result<u64> {
    match env::var("ONCEWIRE_SEED") {
        Ok(seed) => Ok(seed.parse()?),
        Err(_) => Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() / (24 * 60 * 60)),
    }
}

#[test]
#[ignore = "half an hour; see the module"]
fn every_mutation_is_caught() {
    let copy = SourceCopy::lock().unwrap();
    let (mut missed, mut seen, mut unseen) = (Vec::new(), Vec::new(), Vec::new());
    for mutation in Mutation::all().unwrap() {
        let how = copy.catch(&mutation).unwrap_or_else(|error| {
            missed.push(mutation.name.clone());
            format!("NOT CAUGHT: {error:#}")
        });
        println!("{:32} {how}", mutation.name);
        if mutation.files.iter().any(|file| file.starts_with("protocol/")) {
            let is_seen = copy.is_seen_by_corpora().unwrap();
            if is_seen { &mut seen } else { &mut unseen }.push(mutation.name);
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
    println!("the corpora see {}, not: {unseen:?}", seen.len());
    assert!(seen.len() >= SEEN_BY_CORPORA_MIN);
}

/// A deliberate fault.
struct Mutation {
    name: String,
    patch: PathBuf,
    files: Vec<String>,
    /// Within how many worlds it is caught.
    worlds: u64,
    /// A test of the protocol crate that catches it.
    test: Option<String>,
}

impl Mutation {
    /// All of them, by name.
    fn all() -> Result<Vec<Self>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("mutations");
        let mut patches = paths_in(&folder)?;
        patches.sort();
        ensure!(!patches.is_empty(), "there is none in {}", folder.display());
        patches
            .into_iter()
            .map(|path| Self::read(&path).with_context(|| path.display().to_string()))
            .collect()
    }

    fn read(patch: &Path) -> Result<Self> {
        let text = fs::read_to_string(patch)?;
        let (head, diff) = text.split_once("\n--- ").context("there is no diff")?;
        let value = |before: &str, after: &str| {
            head.lines().find_map(|line| line.strip_prefix(before)?.strip_suffix(after)).map(str::to_owned)
        };
        Ok(Self {
            name: patch.file_stem().context("it has no name")?.to_string_lossy().into_owned(),
            patch: patch.to_owned(),
            files: diff.lines().filter_map(|line| Some(line.strip_prefix("+++ b/")?.to_owned())).collect(),
            worlds: value("Caught within ", " worlds.").context("nothing says what catches it")?.parse()?,
            test: value("Caught by the test ", "."),
        })
    }
}

/// A copy of the sources, for one at a time.
struct SourceCopy {
    tree: PathBuf,
    target: PathBuf,
    _lock: File,
}

impl SourceCopy {
    fn lock() -> Result<Self> {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mutations");
        fs::create_dir_all(&folder)?;
        let folder = folder.canonicalize()?;
        let lock = File::create(folder.join("lock"))?;
        lock.lock()?;
        let copy = Self { tree: folder.join("tree"), target: folder.join("target"), _lock: lock };
        copy.refresh()?;
        Ok(copy)
    }

    /// Makes the copy what the sources are. What is the same keeps its time, so that cargo builds only what has changed.
    fn refresh(&self) -> Result<()> {
        let root = root();
        fs::create_dir_all(self.tree.join("tests"))?;
        for name in ["Cargo.toml", "Cargo.lock", "protocol", "src"] {
            mirror(&root.join(name), &self.tree.join(name))?;
        }
        for member in paths_in(&root.join("tests"))? {
            if member.join("Cargo.toml").exists() {
                mirror(&member, &self.tree.join(member.strip_prefix(&root)?))?;
            }
        }
        Ok(())
    }

    /// Puts the fault into the copy.
    fn apply(&self, mutation: &Mutation) -> Result<()> {
        let mut git = Command::new("git");
        git.args(["apply", "--whitespace=nowarn"]).arg(&mutation.patch);
        // The copy may lie in a repository, relative to which git would read the paths.
        git.env("GIT_CEILING_DIRECTORIES", self.tree.parent().unwrap_or(&self.tree));
        for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
            git.env_remove(name);
        }
        let output = match git.current_dir(&self.tree).output() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let mut patch = Command::new("patch");
                patch.args(["-p1", "--batch", "--forward", "--fuzz=0", "--no-backup-if-mismatch", "-i"]);
                patch
                    .arg(&mutation.patch)
                    .current_dir(&self.tree)
                    .output()
                    .context("git or patch is needed")?
            }
            output => output?,
        };
        ensure!(output.status.success(), "{}", text(&output));
        ensure!(!mutation.files.is_empty(), "it changes nothing");
        for file in &mutation.files {
            let [before, after] = [root(), self.tree.clone()].map(|folder| fs::read(folder.join(file)));
            ensure!(before? != after?, "{file} is still the same");
        }
        Ok(())
    }

    /// Puts a fault into the copy, and has it caught; tells how. Afterwards it is still there.
    fn catch(&self, mutation: &Mutation) -> Result<String> {
        self.refresh()?;
        self.apply(mutation)?;
        let build = self.cargo("build").args(PACKAGES).args(["--bin", "oncewire-simulate"]).output()?;
        ensure!(build.status.success(), "it can't be built: {}", text(&build));
        let mut simulate = Command::new(self.target.join("debug/oncewire-simulate"));
        let run = simulate.arg("--seeds").arg(mutation.worlds.to_string()).output()?;
        let out = String::from_utf8_lossy(&run.stdout);
        let failure = out.lines().find(|line| line.starts_with("seed "));
        let caught = match (run.status.code(), failure) {
            (Some(1), Some(failure)) => failure.chars().take(120).collect(),
            (Some(0), _) => bail!("{} worlds passed", mutation.worlds),
            _ => bail!("the simulation ended with {}: {}", run.status, text(&run)),
        };
        if let Some(name) = &mutation.test {
            let mut test = self.cargo("test");
            test.args(["-p", "oncewire-protocol", "--lib", name]);
            test.env("PROPTEST_RNG_SEED", "1").env("PROPTEST_MAX_SHRINK_ITERS", "0");
            let test = test.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true").output()?;
            ensure!(
                String::from_utf8_lossy(&test.stdout).contains("test result: FAILED. 0 passed; 1 failed;"),
                "{name} did not fail: {}",
                text(&test)
            );
        }
        Ok(caught)
    }

    /// Whether the corpora fail with the fault that was just put into the copy.
    fn is_seen_by_corpora(&self) -> Result<bool> {
        let name = "every_file_of_every_corpus_passes";
        let mut test = self.cargo("test");
        let test = test.args(PACKAGES).args(["--test", "corpora", name]).output()?;
        let out = String::from_utf8_lossy(&test.stdout);
        ensure!(out.contains("running 1 test"), "{name} did not run: {}", text(&test));
        Ok(!test.status.success())
    }

    fn cargo(&self, command: &str) -> Command {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or(OsString::from("cargo")));
        cargo.args([command, "--locked", "--quiet", "--target-dir"]).arg(&self.target);
        // Nearly all the time goes into building: most faults need few worlds.
        cargo.args(["--config", r#"profile.dev.package."*".opt-level=0"#]);
        cargo.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0").env("CARGO_PROFILE_DEV_DEBUG", "false");
        cargo.current_dir(&self.tree);
        cargo
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn paths_in(folder: &Path) -> Result<Vec<PathBuf>> {
    Ok(fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_, std::io::Error>>()?)
}

/// Copies a file or a folder, without what other tools leave in it.
fn mirror(from: &Path, to: &Path) -> Result<()> {
    if !from.is_dir() {
        let bytes = fs::read(from)?;
        if fs::read(to).ok().as_ref() != Some(&bytes) {
            fs::write(to, bytes)?;
        }
        return Ok(());
    }
    fs::create_dir_all(to)?;
    let is_source = |name: &OsString| name != "target" && name != "node_modules";
    let names: BTreeSet<OsString> = paths_in(from)?
        .iter()
        .filter_map(|path| path.file_name().map(OsString::from))
        .filter(is_source)
        .collect();
    for path in paths_in(to)? {
        if !path.file_name().is_some_and(|name| names.contains(name)) {
            if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }?;
        }
    }
    names.iter().try_for_each(|name| mirror(&from.join(name), &to.join(name)))
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).trim().to_owned()).join("\n")
}
