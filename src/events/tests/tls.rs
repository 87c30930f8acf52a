//! Handlers behind https.

use std::fs;

use axum::http::Version;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rcgen::generate_simple_self_signed;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::*;
use crate::engine::{EventError, EventHandlers, Handled};

/// An application behind a certificate of its own, and the file with that.
struct Secured {
    port: u16,
    seen: Arc<Mutex<Vec<Seen>>>,
    directory: tempfile::TempDir,
}

impl Secured {
    /// It offers these protocols.
    async fn start(protocols: &[&str]) -> Self {
        let made = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("ca.pem"), made.cert.pem()).unwrap();
        let certificate = CertificateDer::from_pem_slice(made.cert.pem().as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(made.signing_key.serialize_pem().as_bytes()).unwrap();
        let mut tls = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        tls.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::<Mutex<Vec<Seen>>>::default();
        let router = router(Arc::clone(&seen), |seen| {
            let is_question = seen.method == Method::OPTIONS;
            let response = if is_question { leave().into_response() } else { status(204) };
            std::future::ready(response).boxed()
        });
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, router) = (acceptor.clone(), router.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                    let (io, service) = (TokioIo::new(stream), TowerToHyperService::new(router));
                    if is_http2 {
                        let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(io, service).await;
                    } else {
                        let mut server = http1::Builder::new();
                        let _ = server.timer(TokioTimer::new()).serve_connection(io, service).await;
                    }
                });
            }
        });
        Self { port, seen, directory }
    }

    fn handlers(&self, keys: &str) -> Events {
        events(&format!(
            "[[hubs.chat.event_handlers]]\nurl_template = \"https://localhost:{}/{{event}}\"\n\
             user_event_pattern = \"*\"\nretry_after_seconds = []\n{keys}",
            self.port
        ))
    }

    fn authority(&self) -> String {
        format!("tls_ca = \"{}\"", self.directory.path().join("ca.pem").display())
    }

    /// The versions of HTTP that events came by.
    fn versions(&self) -> Vec<Version> {
        self.seen.lock().iter().filter(|seen| seen.method == Method::POST).map(|seen| seen.version).collect()
    }
}

#[tokio::test]
async fn http_2_is_spoken_where_it_is_offered_and_http_1_1_elsewhere() {
    for (offered, version) in [
        (&["h2", "http/1.1"][..], Version::HTTP_2),
        (&["http/1.1"], Version::HTTP_11),
        (&[], Version::HTTP_11),
    ] {
        let application = Secured::start(offered).await;
        let handlers = application.handlers(&application.authority());
        for _ in 0..2 {
            let outcome = handlers.user_event(&hub(), user_event("c", "hi")).await;
            assert_eq!(outcome, Ok(Handled::default()), "{offered:?}");
        }
        assert_eq!(application.versions(), [version; 2]);
        let first = application.seen.lock()[1].clone();
        assert_eq!(first.header("ce-id"), Some("1000000000000001"));
        assert_eq!(first.body, "hi");
    }
}

#[tokio::test]
async fn a_handler_that_nobody_vouches_for_is_not_spoken_to() {
    let (application, other) = (Secured::start(&[]).await, Secured::start(&[]).await);
    let handlers = application.handlers(&other.authority());
    assert_eq!(handlers.user_event(&hub(), user_event("c", "hi")).await, Err(EventError::Failed));
    assert_eq!(application.seen.lock().len(), 0);
}
