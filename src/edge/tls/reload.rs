//! Showing a new certificate when its files change.
//!
//! The files are read again every few seconds and compared by what is in them: whichever way they are replaced (written
//! over, renamed, a link that points elsewhere, on a network's file system), that finds it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use sha2::{Digest as _, Sha256};
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;

use super::certificate::{self, CertificateError, Contents};

/// How often the files are read.
const INTERVAL: Duration = Duration::from_secs(2);

/// The certificate that clients are shown from now on.
#[derive(Debug)]
pub(super) struct Shown(RwLock<Arc<CertifiedKey>>);

impl Shown {
    pub(super) fn new(pair: CertifiedKey) -> Self {
        Self(RwLock::new(Arc::new(pair)))
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read()))
    }
}

/// Where a certificate and its key come from.
#[derive(Debug, Clone)]
pub(super) struct Files {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// What was found in the files, without keeping it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Found {
    Contents([u8; 32]),
    /// They could not be read; why not.
    Unreadable(String),
}

impl Found {
    fn of(read: &Result<Contents, CertificateError>) -> Self {
        match read {
            Ok(contents) => {
                let mut digest = Sha256::new();
                // The length divides the two.
                digest.update((contents.certificate.len() as u64).to_be_bytes());
                digest.update(&contents.certificate);
                digest.update(&contents.key);
                Self::Contents(digest.finalize().into())
            }
            Err(error) => Self::Unreadable(error.to_string()),
        }
    }
}

/// What came of a look at the files.
#[derive(Debug)]
enum Outcome {
    /// Nothing to speak of.
    Nothing,
    /// There is a new pair, and it is shown.
    Replaced,
    /// What is there now can't be used; the old pair is still shown.
    Refused(CertificateError),
}

/// Looks at the files now and then.
pub(in crate::edge) struct Watch {
    files: Files,
    shown: Arc<Shown>,
    provider: Arc<CryptoProvider>,
    current: Found,
    /// What can't be used, and how many looks in a row have found it.
    suspect: Option<(Found, u8)>,
}

impl Watch {
    /// `contents` are those of the pair that is shown.
    pub(super) fn new(
        files: Files,
        contents: Contents,
        shown: Arc<Shown>,
        provider: Arc<CryptoProvider>,
    ) -> Self {
        Self { files, shown, provider, current: Found::of(&Ok(contents)), suspect: None }
    }

    /// Looks until it is dropped.
    pub(in crate::edge) async fn run(mut self) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            let looked = tokio::task::spawn_blocking(move || {
                let outcome = self.look();
                (self, outcome)
            });
            // Only the end of the process keeps such a task from its own end.
            let Ok((watch, outcome)) = looked.await else { return };
            self = watch;
            match outcome {
                Outcome::Nothing => {}
                Outcome::Replaced => tracing::info!("a new certificate is shown from now on"),
                Outcome::Refused(error) => {
                    tracing::warn!(%error, "the new certificate can't be used: the old one is still shown");
                }
            }
        }
    }

    /// Two files can't be replaced at once: what can't be used counts only when it is still there at the next look.
    fn look(&mut self) -> Outcome {
        let read = certificate::contents(&self.files.certificate, &self.files.key);
        let found = Found::of(&read);
        if found == self.current {
            self.suspect = None;
            return Outcome::Nothing;
        }
        let parsed = read.and_then(|read| {
            certificate::parse(&read, &self.files.certificate, &self.files.key, &self.provider)
        });
        match parsed {
            Ok(pair) => {
                *self.shown.0.write() = Arc::new(pair);
                self.current = found;
                self.suspect = None;
                Outcome::Replaced
            }
            Err(error) => {
                let looks = match self.suspect.take() {
                    Some((suspect, looks)) if suspect == found => looks.saturating_add(1),
                    _ => 1,
                };
                self.suspect = Some((found, looks));
                if looks == 2 { Outcome::Refused(error) } else { Outcome::Nothing }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use rcgen::generate_simple_self_signed;
    use tokio_rustls::rustls::crypto::ring;

    use super::*;

    /// The certificate and its key, in PEM.
    fn pair() -> (String, String) {
        let made = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    struct Bench {
        directory: tempfile::TempDir,
        watch: Watch,
    }

    impl Bench {
        /// Files behind links, as Kubernetes mounts them: `now` points to the directory of the current version.
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            publish(directory.path(), "1", &pair());
            for name in ["cert.pem", "key.pem"] {
                std::os::unix::fs::symlink(Path::new("now").join(name), directory.path().join(name)).unwrap();
            }
            let files = Files {
                certificate: directory.path().join("cert.pem"),
                key: directory.path().join("key.pem"),
            };
            let provider = Arc::new(ring::default_provider());
            let contents = certificate::contents(&files.certificate, &files.key).unwrap();
            let parsed = certificate::parse(&contents, &files.certificate, &files.key, &provider).unwrap();
            let watch = Watch::new(files, contents, Arc::new(Shown::new(parsed)), provider);
            Self { directory, watch }
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.directory.path().join(name), text).unwrap();
        }

        fn shown(&self) -> Vec<u8> {
            self.watch.shown.0.read().cert[0].to_vec()
        }
    }

    /// Writes a version and has `now` point to it.
    fn publish(directory: &Path, version: &str, (certificate, key): &(String, String)) {
        fs::create_dir(directory.join(version)).unwrap();
        fs::write(directory.join(version).join("cert.pem"), certificate).unwrap();
        fs::write(directory.join(version).join("key.pem"), key).unwrap();
        std::os::unix::fs::symlink(version, directory.join("next")).unwrap();
        fs::rename(directory.join("next"), directory.join("now")).unwrap();
    }

    #[test]
    fn what_has_not_changed_is_not_loaded_again() {
        let mut bench = Bench::new();
        let shown = bench.shown();
        let again = fs::read(bench.directory.path().join("cert.pem")).unwrap();
        fs::write(bench.directory.path().join("cert.pem"), again).unwrap();
        assert!(matches!(bench.watch.look(), Outcome::Nothing));
        assert_eq!(bench.shown(), shown);
    }

    #[test]
    fn a_link_that_points_elsewhere_is_followed_and_so_is_a_file_written_over() {
        let mut bench = Bench::new();
        let first = bench.shown();
        publish(bench.directory.path(), "2", &pair());
        assert!(matches!(bench.watch.look(), Outcome::Replaced));
        let second = bench.shown();
        assert_ne!(second, first);
        let (certificate, key) = pair();
        bench.write("cert.pem", &certificate);
        // Between the two they don't match, which is nothing to speak of.
        assert!(matches!(bench.watch.look(), Outcome::Nothing));
        assert_eq!(bench.shown(), second);
        bench.write("key.pem", &key);
        assert!(matches!(bench.watch.look(), Outcome::Replaced));
        assert_ne!(bench.shown(), second);
    }

    #[test]
    fn what_cannot_be_used_is_told_once_and_the_old_pair_stays() {
        let mut bench = Bench::new();
        let shown = bench.shown();
        for bad in ["garbage", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"] {
            bench.write("key.pem", bad);
            let told: Vec<_> = (0..5).map(|_| matches!(bench.watch.look(), Outcome::Refused(_))).collect();
            assert_eq!(told, [false, true, false, false, false]);
        }
        fs::remove_file(bench.directory.path().join("cert.pem")).unwrap();
        assert!(matches!(bench.watch.look(), Outcome::Nothing));
        assert!(matches!(bench.watch.look(), Outcome::Refused(CertificateError::Unreadable { .. })));
        assert_eq!(bench.shown(), shown);
        let (certificate, key) = pair();
        bench.write("cert.pem", &certificate);
        bench.write("key.pem", &key);
        assert!(matches!(bench.watch.look(), Outcome::Replaced));
    }
}
