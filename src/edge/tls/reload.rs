//! Showing a new certificate when its files change.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::RwLock;
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;

use super::certificate::{self, CertificateError, Contents};
use crate::reload::{self, Reloaded};

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

/// Looks at the files now and then.
pub(in crate::edge) type Watch = reload::Watch<Pair>;

/// A certificate and its key, as they come from files and are shown.
pub(in crate::edge) struct Pair {
    pub(super) files: Files,
    pub(super) shown: Arc<Shown>,
    pub(super) provider: Arc<CryptoProvider>,
}

impl Reloaded for Pair {
    type Contents = Contents;
    type Error = CertificateError;

    fn read(&self) -> Result<Contents, CertificateError> {
        certificate::contents(&self.files.certificate, &self.files.key)
    }

    fn bytes(contents: &Contents) -> Vec<&[u8]> {
        vec![&contents.certificate, &contents.key]
    }

    fn take(&mut self, contents: Contents) -> Result<bool, CertificateError> {
        let Files { certificate, key } = &self.files;
        let pair = certificate::parse(&contents, certificate, key, &self.provider)?;
        *self.shown.0.write() = Arc::new(pair);
        Ok(true)
    }

    fn log_taken(&self) {
        tracing::info!("a new certificate is shown from now on");
    }

    fn log_refused(&self, error: &CertificateError) {
        tracing::warn!(%error, "the new certificate can't be used: the old one is still shown");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use rcgen::generate_simple_self_signed;
    use tokio_rustls::rustls::crypto::ring;

    use super::*;
    use crate::reload::Outcome;

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
            let pair = Pair { files, shown: Arc::new(Shown::new(parsed)), provider };
            let watch = Watch::new(pair, Some(contents));
            Self { directory, watch }
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.directory.path().join(name), text).unwrap();
        }

        fn shown(&self) -> Vec<u8> {
            self.watch.reloaded().shown.0.read().cert[0].to_vec()
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
        assert!(matches!(bench.watch.look(), Outcome::Taken));
        let second = bench.shown();
        assert_ne!(second, first);
        let (certificate, key) = pair();
        bench.write("cert.pem", &certificate);
        // Between the two they don't match, which is nothing to speak of.
        assert!(matches!(bench.watch.look(), Outcome::Nothing));
        assert_eq!(bench.shown(), second);
        bench.write("key.pem", &key);
        assert!(matches!(bench.watch.look(), Outcome::Taken));
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
        assert!(matches!(bench.watch.look(), Outcome::Taken));
    }
}
