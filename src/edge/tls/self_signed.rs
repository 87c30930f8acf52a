//! A certificate that the gateway makes for itself: for development, and for whoever trusts just this one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair};
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::sign::CertifiedKey;
use url::{Host, Url};

use super::TlsError;
use super::certificate::{self, Contents};

/// The certificate and its key, for the gateway alone.
const PAIR_FILE: &str = "self-signed.pem";
/// A copy of the certificate in the data directory, for clients to trust.
pub const CERTIFICATE_FILE: &str = "self-signed-certificate.pem";
/// What is being written, until it is whole.
const UNFINISHED_SUFFIX: &str = ".unfinished";

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a certificate is good.
const VALIDITY: Duration = Duration::from_secs(365 * DAY.as_secs());
/// One that is good no longer than this is replaced at the next start.
const VALIDITY_LEFT_MIN: Duration = Duration::from_secs(30 * DAY.as_secs());
/// Clocks of clients may be behind.
const VALID_BEFORE: Duration = DAY;

/// In which lines a pair's file says what it is for, before the key and the certificate.
const NAMES_LINE: &str = "names: ";
const GOOD_UNTIL_LINE: &str = "good until (Unix seconds): ";

const CERTIFICATE_BEGIN: &str = "-----BEGIN CERTIFICATE-----";

/// The certificate that is kept in the directory, made anew where there is none, its names are others, or it is about to
/// expire. Without a directory each call makes one. `public_urls` name the hosts beside this machine's own.
pub(super) fn keep(
    directory: Option<&Path>,
    public_urls: &[Url],
    now: SystemTime,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, TlsError> {
    let names = names(public_urls);
    let parse = |pem: &str, path: &Path| {
        let contents = Contents { certificate: pem.as_bytes().to_vec(), key: pem.as_bytes().to_vec() };
        certificate::parse(&contents, path, path, provider)
    };
    let Some(directory) = directory else {
        tracing::info!(?names, "made a self-signed certificate, which goes with this process");
        return Ok(parse(&make(&names, now)?, Path::new(PAIR_FILE))?);
    };
    let path = directory.join(PAIR_FILE);
    let kept = fs::read_to_string(&path).ok().filter(|pem| is_good(pem, &names, now));
    let (pem, pair) = match kept.and_then(|pem| parse(&pem, &path).ok().map(|pair| (pem, pair))) {
        Some(kept) => kept,
        None => {
            let pem = make(&names, now)?;
            write(&path, &pem, 0o600)?;
            let pair = parse(&pem, &path)?;
            (pem, pair)
        }
    };
    let shared = directory.join(CERTIFICATE_FILE);
    let certificate = &pem[pem.find(CERTIFICATE_BEGIN).unwrap_or(pem.len())..];
    if fs::read_to_string(&shared).ok().as_deref() != Some(certificate) {
        write(&shared, certificate, 0o644)?;
    }
    tracing::info!(?names, certificate = %shared.display(), "clients have to trust the self-signed certificate");
    Ok(pair)
}

/// What clients call this gateway.
fn names(public_urls: &[Url]) -> Vec<String> {
    let machine = ["localhost".to_owned(), Ipv4Addr::LOCALHOST.to_string(), Ipv6Addr::LOCALHOST.to_string()];
    let public = public_urls.iter().filter_map(|url| {
        Some(match url.host()? {
            Host::Domain(name) => name.to_owned(),
            Host::Ipv4(address) => address.to_string(),
            Host::Ipv6(address) => address.to_string(),
        })
    });
    let mut names = Vec::new();
    for name in machine.into_iter().chain(public) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// A new key and its certificate, as they stand in a file.
fn make(names: &[String], now: SystemTime) -> Result<String, TlsError> {
    let good_until = now + VALIDITY;
    let key = KeyPair::generate().map_err(TlsError::SelfSigned)?;
    let mut params = CertificateParams::new(names).map_err(TlsError::SelfSigned)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "Oncewire, self-signed");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.not_before = (now - VALID_BEFORE).into();
    params.not_after = good_until.into();
    let certificate = params.self_signed(&key).map_err(TlsError::SelfSigned)?;
    Ok(format!(
        "{NAMES_LINE}{}\n{GOOD_UNTIL_LINE}{}\n{}{}",
        names.join(" "),
        unix_seconds(good_until),
        key.serialize_pem(),
        certificate.pem()
    ))
}

/// Whether a pair's file is for these names, and for some time to come.
fn is_good(pem: &str, names: &[String], now: SystemTime) -> bool {
    let mut lines = pem.lines();
    let is_for_names =
        lines.next().and_then(|line| line.strip_prefix(NAMES_LINE)) == Some(names.join(" ").as_str());
    let good_until: Option<u64> =
        lines.next().and_then(|line| line.strip_prefix(GOOD_UNTIL_LINE)?.parse().ok());
    is_for_names && good_until.is_some_and(|until| unix_seconds(now + VALIDITY_LEFT_MIN) < until)
}

/// Writes a file so that under its name there is the whole of it or what was there before.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), TlsError> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(UNFINISHED_SUFFIX);
    let unfinished = PathBuf::from(unfinished);
    let write = || {
        // One that a stop has left may have another mode.
        match fs::remove_file(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&unfinished)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&unfinished, path)?;
        path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
    };
    write().map_err(|source| TlsError::Unwritable { path: path.to_owned(), source })
}

fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use tokio_rustls::rustls::crypto::ring;

    use super::*;

    const HOST: &str = "https://chat.example.com/wps";

    struct Bench {
        directory: tempfile::TempDir,
        now: SystemTime,
    }

    impl Bench {
        fn new() -> Self {
            Self { directory: tempfile::tempdir().unwrap(), now: SystemTime::now() }
        }

        /// The certificate of a start so many days later.
        fn shown(&self, public_urls: &[&str], days: u32) -> Vec<u8> {
            let urls: Vec<Url> = public_urls.iter().map(|url| url.parse().unwrap()).collect();
            let now = self.now + days * DAY;
            let pair = keep(Some(self.directory.path()), &urls, now, &ring::default_provider()).unwrap();
            pair.cert[0].to_vec()
        }

        fn path(&self, name: &str) -> PathBuf {
            self.directory.path().join(name)
        }
    }

    #[test]
    fn it_is_for_this_machine_and_the_public_hosts_each_once() {
        let urls: Vec<Url> =
            [HOST, "http://chat.example.com", "https://localhost:1", "http://[::2]", "http://10.0.0.1"]
                .map(|url| url.parse().unwrap())
                .to_vec();
        assert_eq!(names(&urls), ["localhost", "127.0.0.1", "::1", "chat.example.com", "::2", "10.0.0.1"]);
    }

    #[test]
    fn a_start_finds_it_again_until_its_names_change_or_it_is_about_to_expire() {
        let bench = Bench::new();
        let first = bench.shown(&[], 0);
        assert_eq!(bench.shown(&[], 334), first);
        let second = bench.shown(&[], 336);
        assert_ne!(second, first);
        assert_eq!(bench.shown(&[], 336), second);
        let named = bench.shown(&[HOST], 336);
        assert_ne!(named, second);
        assert_eq!(bench.shown(&[HOST], 336), named);
        assert_ne!(bench.shown(&[], 336), named);
    }

    #[test]
    fn the_key_is_the_owners_and_the_certificate_lies_beside_it_for_clients() {
        let bench = Bench::new();
        // What a stop in the middle of writing has left.
        fs::write(bench.path("self-signed.pem.unfinished"), "half").unwrap();
        let shown = bench.shown(&[], 0);
        let mode = |name: &str| fs::metadata(bench.path(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(PAIR_FILE), 0o600);
        assert!(!bench.path("self-signed.pem.unfinished").exists());
        let certificate = fs::read_to_string(bench.path(CERTIFICATE_FILE)).unwrap();
        assert!(certificate.starts_with(CERTIFICATE_BEGIN) && !certificate.contains("PRIVATE"));
        fs::remove_file(bench.path(CERTIFICATE_FILE)).unwrap();
        assert_eq!(bench.shown(&[], 0), shown);
        assert_eq!(fs::read_to_string(bench.path(CERTIFICATE_FILE)).unwrap(), certificate);
    }

    #[test]
    fn one_that_is_damaged_is_made_anew_and_a_directory_that_is_not_there_is_named() {
        let bench = Bench::new();
        let first = bench.shown(&[], 0);
        let pem = fs::read_to_string(bench.path(PAIR_FILE)).unwrap();
        for damaged in ["", &pem[..pem.len() / 2], &pem.replace("MI", "IM")] {
            fs::write(bench.path(PAIR_FILE), damaged).unwrap();
            assert_ne!(bench.shown(&[], 0), first);
        }
        let nowhere = bench.path("nowhere");
        let refused = keep(Some(&nowhere), &[], bench.now, &ring::default_provider()).unwrap_err();
        assert!(refused.to_string().contains("nowhere"), "{refused}");
    }
}
