//! A gateway in the test's own process.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use oncewire::admin::Readiness;
use oncewire::config::{Config, Scheme, Secret};
use oncewire::engine::Engine;
use oncewire::gateway::{self, Storage};
use oncewire::store::{MemoryStore, Store};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::{
    ACCESS_KEY, Bare, Connector, HUB, Identity, JSON, PairFiles, RELIABLE, SECONDARY_KEY, Socket, TlsClient,
    Token, soon,
};

/// A running gateway; dropped, it goes away without a word.
pub struct Gateway {
    address: SocketAddr,
    tls_address: Option<SocketAddr>,
    engine: Engine,
    readiness: Readiness,
    stop: oneshot::Sender<()>,
    served: JoinHandle<()>,
}

impl Gateway {
    /// With the settings that an operator gets who sets nothing.
    pub async fn start() -> Self {
        Self::with(|_| {}).await
    }

    /// With each hub in several shards.
    pub async fn sharded() -> Self {
        Self::with(|config| config.hub_shards = 4).await
    }

    /// With other settings.
    pub async fn with(change: impl FnOnce(&mut Config)) -> Self {
        Self::with_store(Arc::new(MemoryStore::default()), change).await
    }

    /// With https beside http. The certificate's files have to be there at the start.
    pub async fn with_tls(files: &PairFiles, change: impl FnOnce(&mut Config)) -> Self {
        Self::with(|config| {
            config.tls_cert = Some(files.certificate.clone());
            config.tls_key = Some(files.key.clone());
            change(config);
        })
        .await
    }

    /// With another store.
    pub async fn with_store(store: Arc<dyn Store>, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config {
            listen: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
            tls_listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            access_key: Some(Secret::new(ACCESS_KEY)),
            secondary_access_key: Some(Secret::new(SECONDARY_KEY)),
            ..Config::default()
        };
        change(&mut config);
        let listeners = gateway::bind(&config).await.unwrap();
        let addresses = listeners.addresses().unwrap();
        let at = |wanted| addresses.iter().find(|(scheme, _)| *scheme == wanted).map(|(_, address)| *address);
        let (address, tls_address) = (at(Scheme::Http).unwrap(), at(Scheme::Https));
        let gateway = gateway::Gateway::new(config, Storage::new(store)).unwrap();
        let (engine, readiness) = (gateway.engine().clone(), gateway.readiness());
        let (stop, stopped) = oneshot::channel();
        let served = tokio::spawn(async move {
            gateway
                .serve(listeners, async {
                    if stopped.await.is_err() {
                        std::future::pending::<()>().await;
                    }
                })
                .await
                .unwrap();
        });
        Self { address, tls_address, engine, readiness, stop, served }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it listens for https.
    pub fn tls_address(&self) -> SocketAddr {
        self.tls_address.unwrap()
    }

    /// Where the sessions live.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Tells when it takes work.
    pub fn readiness(&self) -> &Readiness {
        &self.readiness
    }

    /// For everything about a handshake that a scenario wants to say itself.
    pub fn connector(&self) -> Connector {
        Connector::new(self.address)
    }

    /// The same over https.
    pub fn tls_connector(&self, tls: &TlsClient) -> Connector {
        Connector::new(self.tls_address()).inside(tls)
    }

    /// A new reliable session of a user who may do everything, its `connected` read.
    pub async fn reliable(&self, user: &str) -> Socket {
        self.session(RELIABLE, &Token::user(user)).await
    }

    /// The same over https.
    pub async fn reliable_inside(&self, tls: &TlsClient, user: &str) -> Socket {
        let connector = self.tls_connector(tls).token(&Token::user(user)).offer(RELIABLE);
        let mut socket = connector.open().await.unwrap();
        socket.read_connected().await;
        socket
    }

    /// The same without recovery.
    pub async fn json(&self, user: &str) -> Socket {
        self.session(JSON, &Token::user(user)).await
    }

    /// A new session, its `connected` read.
    pub async fn session(&self, subprotocol: &str, token: &Token) -> Socket {
        let mut socket = self.connector().token(token).offer(subprotocol).open().await.unwrap();
        socket.read_connected().await;
        socket
    }

    /// A new session in protobuf, its `connected` passed over.
    pub async fn protobuf(&self, subprotocol: &str, token: &Token) -> Socket {
        let mut socket = self.connector().token(token).offer(subprotocol).open().await.unwrap();
        let connected = socket.read_bare().await;
        assert!(
            matches!(&connected, Bare::Binary(bytes) if bytes[0] == 0x1a && bytes[2] == 0x0a),
            "{connected:?}"
        );
        socket
    }

    /// A raw client that receives what its groups get, and whose frames are events.
    pub async fn raw(&self, token: &Token) -> Socket {
        self.connector().token(token).open().await.unwrap()
    }

    /// A raw client whose frames are published to a group.
    pub async fn raw_publisher(&self, group: &str, token: &Token) -> Socket {
        let connector = self.connector().query("webpubsub_mode", "sendToGroup").query("group", group);
        connector.token(token).open().await.unwrap()
    }

    /// A socket that recovers a session. A refusal comes as a close frame on it.
    pub async fn recover(&self, identity: &Identity) -> Socket {
        self.connector().hub(HUB).recover(identity).offer(RELIABLE).open().await.unwrap()
    }

    /// Recovers and expects to be refused.
    #[track_caller]
    pub fn expect_unrecoverable(&self, identity: &Identity) -> impl Future<Output = ()> {
        let recovering = self.recover(identity);
        async move { recovering.await.expect_close(1008).await }
    }

    /// Tells it to stop and waits until it has.
    pub async fn shut_down(self) {
        self.begin_shut_down().await;
    }

    /// Tells it to stop; the future completes when it has.
    pub fn begin_shut_down(self) -> impl Future<Output = ()> {
        let _ = self.stop.send(());
        async move { soon(self.served).await.unwrap() }
    }
}
