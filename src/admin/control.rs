//! The socket in the data directory over which a running gateway is asked for a copy of it.
//!
//! Only whoever owns the gateway's process may connect: that is the file's mode. A connection carries one request and its
//! answer, in lines of JSON:
//!
//! ```text
//! > {"copy_to":"/backups/monday"}
//! < {"hub":"chat","records":1204}
//! < {"hub":"old","left_out":"... is damaged"}
//! < {"done":true}                              or {"error":"..."}
//! ```
//! A client that goes away gives the copy up.

use std::fs::{self, Permissions};
use std::io::{self, BufRead as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream as ClientStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use socket2::{Domain, SockAddr, Type};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::store::{CONTROL_SOCKET, EmbeddedStore, HubCopied, StoreError};
use crate::telemetry::Episode;

/// Connections that are served at once; further ones wait.
pub const CONNECTIONS_MAX: usize = 4;
/// A request, in bytes.
pub const REQUEST_BYTES_MAX: u64 = 16 * 1024;
/// How long a client may take to send its request.
const REQUEST_WAIT: Duration = Duration::from_secs(10);
/// Answers that wait for the client to take them; then the copy waits.
const ANSWERS_MAX: usize = 64;
/// What fits into a socket's address, in bytes, with some room to spare. The way to a longer path leads over its directory.
const ADDRESS_BYTES_MAX: usize = 100;

/// Why a running gateway made no copy.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// It can't be asked.
    #[error("the process that uses {directory} can't be asked for a copy: {source}")]
    Unreachable {
        /// The data directory.
        directory: String,
        /// Why not.
        source: io::Error,
    },
    /// The path can't be sent.
    #[error("the path of the copy is no text")]
    NoText,
    /// It went away before the copy was finished.
    #[error("the gateway ended before the copy was finished")]
    Ended,
    /// It tried and failed, or did not want to.
    #[error("{0}")]
    Refused(String),
}

/// What a client asks for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    copy_to: String,
}

/// A line of the answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Answer {
    Copied { hub: String, records: u64 },
    LeftOut { hub: String, left_out: String },
    Done { done: bool },
    Error { error: String },
}

/// What has become of a hub in a copy, as it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// It is there, with so many records of its log.
    Copied(u64),
    /// It is not, and why.
    LeftOut(String),
}

/// The socket, until it is dropped.
pub struct Control {
    listener: UnixListener,
    path: PathBuf,
    store: Arc<EmbeddedStore>,
}

impl Control {
    /// Listens in a data directory, which this process has for itself: what is left of another socket is removed. Has to be
    /// called on a runtime.
    ///
    /// # Errors
    /// The file system has no sockets, or there is no permission.
    pub fn listen(directory: &Path, store: Arc<EmbeddedStore>) -> io::Result<Self> {
        let path = directory.join(CONTROL_SOCKET);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
        with_address(directory, |address| socket.bind(address))?;
        // Nobody can connect before it listens.
        fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        socket.listen(CONNECTIONS_MAX as i32)?;
        socket.set_nonblocking(true)?;
        let listener = UnixListener::from_std(std::os::unix::net::UnixListener::from(
            std::os::fd::OwnedFd::from(socket),
        ))?;
        Ok(Self { listener, path, store })
    }

    /// Serves for ever. Dropped, it gives up what is under way.
    pub async fn serve(self) {
        let mut connections = JoinSet::new();
        let failures = Episode::new("the control socket can't be used", "");
        loop {
            tokio::select! {
                accepted = self.listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                    Ok((stream, _)) => drop(connections.spawn(serve_one(stream, Arc::clone(&self.store)))),
                    Err(error) => {
                        if failures.is_news(Instant::now()) {
                            tracing::warn!(%error, "the control socket can't be used for a while");
                        }
                        tokio::time::sleep(Duration::from_secs(1)).await;
                    }
                },
                Some(_) = connections.join_next() => {}
            }
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // Nobody listens; the next start would remove it as well.
        let _ = fs::remove_file(&self.path);
    }
}

async fn serve_one(stream: UnixStream, store: Arc<EmbeddedStore>) {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    let answer = match timeout(REQUEST_WAIT, request(&mut reader)).await {
        Ok(Ok(Request { copy_to })) => copy(&copy_to, store, &mut reader, &mut writer).await,
        Ok(Err(text)) => Some(Answer::Error { error: text }),
        Err(_) => None,
    };
    if let Some(answer) = answer {
        // It may have gone.
        let _ = write(&mut writer, &answer).await;
    }
}

async fn request(reader: &mut BufReader<OwnedReadHalf>) -> Result<Request, String> {
    let mut line = Vec::new();
    let mut reader = reader.take(REQUEST_BYTES_MAX);
    reader.read_until(b'\n', &mut line).await.map_err(|error| error.to_string())?;
    if !line.ends_with(b"\n") {
        return Err(format!("a request is one line of at most {REQUEST_BYTES_MAX} bytes"));
    }
    serde_json::from_slice(&line).map_err(|error| format!("the request can't be understood: {error}"))
}

/// Sets it when the answer is not waited for any more.
struct GivesUp(Arc<AtomicBool>);

impl Drop for GivesUp {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Makes a copy; returns the last line of the answer, if there is somebody to read it.
async fn copy(
    to: &str,
    store: Arc<EmbeddedStore>,
    reader: &mut BufReader<OwnedReadHalf>,
    writer: &mut OwnedWriteHalf,
) -> Option<Answer> {
    let to = PathBuf::from(to);
    if !to.is_absolute() {
        return Some(Answer::Error { error: format!("{} is no absolute path", to.display()) });
    }
    tracing::info!(to = %to.display(), "a copy of the data directory is being made");
    let is_given_up = Arc::new(AtomicBool::new(false));
    let _gives_up = GivesUp(Arc::clone(&is_given_up));
    let (answers, mut told) = mpsc::channel(ANSWERS_MAX);
    let place = to.clone();
    let copying = tokio::task::spawn_blocking(move || {
        store.copy(&to, &is_given_up, |hub, copied| {
            let hub = hub.to_string();
            let answer = match copied {
                HubCopied::Whole(records) => Answer::Copied { hub, records },
                HubCopied::LeftOut(cause) => Answer::LeftOut { hub, left_out: cause.to_string() },
            };
            // Whoever asked may have gone.
            let _ = answers.blocking_send(answer);
        })
    });
    let mut rest = [0];
    let telling = async {
        while let Some(answer) = told.recv().await {
            write(writer, &answer).await?;
        }
        io::Result::Ok(copying.await)
    };
    let copied: Result<(), StoreError> = tokio::select! {
        told = telling => told.ok()?.ok()?,
        // Nothing more is expected: the client has gone.
        _ = reader.read(&mut rest) => return None,
    };
    match copied {
        Ok(()) => {
            tracing::info!(to = %place.display(), "a copy of the data directory was made");
            Some(Answer::Done { done: true })
        }
        Err(error) => {
            tracing::warn!(to = %place.display(), %error, "no copy of the data directory was made");
            Some(Answer::Error { error: error.cause.to_string() })
        }
    }
}

async fn write(writer: &mut OwnedWriteHalf, answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    writer.write_all(&line).await
}

/// Asks the gateway that uses a data directory for a copy of it, and waits until it is made. `told` is told what has become
/// of each hub. The path is the gateway's: it has to be absolute.
///
/// # Errors
/// Nobody answers, or no copy was made; what was made of it can't be used.
pub fn ask_for_copy(
    directory: &Path,
    to: &Path,
    mut told: impl FnMut(&str, Told),
) -> Result<(), ControlError> {
    let copy_to = to.to_str().ok_or(ControlError::NoText)?.to_owned();
    let ask = || -> io::Result<ClientStream> {
        let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
        with_address(directory, |address| socket.connect(address))?;
        let mut stream = ClientStream::from(std::os::fd::OwnedFd::from(socket));
        let mut line = serde_json::to_vec(&Request { copy_to })?;
        line.push(b'\n');
        stream.write_all(&line)?;
        Ok(stream)
    };
    let stream = ask().map_err(|source| {
        let directory = directory.display().to_string();
        ControlError::Unreachable { directory, source }
    })?;
    for line in io::BufReader::new(stream).lines() {
        let line = line.map_err(|_| ControlError::Ended)?;
        let answer = serde_json::from_str(&line);
        match answer.map_err(|_| ControlError::Refused(format!("an answer that is not known: {line}")))? {
            Answer::Copied { hub, records } => told(&hub, Told::Copied(records)),
            Answer::LeftOut { hub, left_out } => told(&hub, Told::LeftOut(left_out)),
            Answer::Done { .. } => return Ok(()),
            Answer::Error { error } => return Err(ControlError::Refused(error)),
        }
    }
    Err(ControlError::Ended)
}

/// The socket's address in a directory. A path that is too long for one is named by the open directory.
fn with_address<T>(directory: &Path, use_it: impl FnOnce(&SockAddr) -> io::Result<T>) -> io::Result<T> {
    let path = directory.join(CONTROL_SOCKET);
    if path.as_os_str().len() <= ADDRESS_BYTES_MAX {
        return use_it(&SockAddr::unix(&path)?);
    }
    let open = fs::File::open(directory)?;
    let path = Path::new("/proc/self/fd").join(open.as_raw_fd().to_string()).join(CONTROL_SOCKET);
    use_it(&SockAddr::unix(path)?)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use tempfile::TempDir;

    use super::*;
    use crate::config::Durability;

    struct Served {
        directory: PathBuf,
        place: TempDir,
        task: tokio::task::JoinHandle<()>,
    }

    impl Drop for Served {
        fn drop(&mut self) {
            self.task.abort();
        }
    }

    /// A directory that is asked over its socket, below so many characters more.
    fn serve(more: usize) -> Served {
        let place = TempDir::new().unwrap();
        let mut directory = place.path().join("data");
        for _ in 0..more / 50 {
            directory.push("x".repeat(50));
        }
        let store = Arc::new(EmbeddedStore::open(&directory, |_| Durability::Sync).unwrap());
        let control = Control::listen(&directory, store).unwrap();
        Served { directory, place, task: tokio::spawn(control.serve()) }
    }

    fn connect(served: &Served) -> ClientStream {
        ClientStream::connect(served.directory.join(CONTROL_SOCKET)).unwrap()
    }

    /// What is answered to a line.
    async fn answer(served: &Served, line: Vec<u8>) -> String {
        let mut stream = connect(served);
        let answered = tokio::task::spawn_blocking(move || {
            // It may stop reading before the end.
            let _ = stream.write_all(&line);
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer);
            answer
        });
        answered.await.unwrap()
    }

    #[tokio::test]
    async fn a_copy_is_asked_for_by_one_line_whatever_the_length_of_the_path() {
        for more in [0, 200] {
            let served = serve(more);
            let mode = fs::metadata(served.directory.join(CONTROL_SOCKET)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            let (directory, to) = (served.directory.clone(), served.place.path().join("copy"));
            let asked = tokio::task::spawn_blocking(move || {
                ask_for_copy(&directory, &to, |_, _| {}).unwrap();
                let again = ask_for_copy(&directory, &to, |_, _| {}).unwrap_err();
                assert!(again.to_string().contains("it is not empty"), "{again}");
                to
            });
            assert!(asked.await.unwrap().join("format").exists());
        }
    }

    #[tokio::test]
    async fn what_is_no_request_is_refused() {
        let served = serve(0);
        for (line, expected) in [
            (&b"{\"copy_to\":\"relative\"}\n"[..], "is no absolute path"),
            (b"{\"copy_to\":\"/x\",\"more\":1}\n", "can't be understood"),
            (b"nonsense\n", "can't be understood"),
        ] {
            let answer = answer(&served, line.to_vec()).await;
            assert!(answer.starts_with("{\"error\":") && answer.contains(expected), "{answer}");
        }
        let mut longest = vec![b' '; REQUEST_BYTES_MAX as usize];
        *longest.last_mut().unwrap() = b'\n';
        assert!(answer(&served, longest.clone()).await.contains("can't be understood"));
        longest.insert(0, b' ');
        assert!(answer(&served, longest).await.contains("one line of at most"));
    }

    #[tokio::test]
    async fn one_connection_more_waits_for_another_to_end() {
        let served = serve(0);
        let mut idle: Vec<_> = (0..CONNECTIONS_MAX).map(|_| connect(&served)).collect();
        let mut late = tokio::spawn({
            let mut stream = connect(&served);
            stream.write_all(b"nonsense\n").unwrap();
            async move {
                let read = tokio::task::spawn_blocking(move || {
                    let mut answer = String::new();
                    stream.read_to_string(&mut answer).map(|_| answer)
                });
                read.await.unwrap().unwrap()
            }
        });
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!late.is_finished());
        idle.pop();
        assert!((&mut late).await.unwrap().contains("can't be understood"));
    }
}
