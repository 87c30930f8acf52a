//! Puts the rooms together: from a configuration and a listener to a running gateway.

mod config_file;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oncewire_protocol::log::BootId;
use oncewire_protocol::wire::HubName;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use crate::admin::control::Control;
use crate::admin::{self, Health, Readiness};
use crate::auth::{AccessKeyError, AccessKeys, ContinuationTokens, ReconnectionTokens};
use crate::config::{Config, Listener, Overrides, Scheme, Secret, Store as ConfiguredStore};
use crate::demo::{self, Demo};
use crate::edge::{self, Edge, Faults, Gate, Operations, Tls, TlsError};
use crate::engine::Engine;
use crate::events::{Events, EventsError};
use crate::reload::Watch;
use crate::rest::{self, Rest};
use crate::store::{EmbeddedStore, MemoryStore, Store, StoreError};
use crate::telemetry::Counters;

pub use config_file::{ConfigFile, ConfigFileError};

fn advice_on_listening(flag: &str, address: SocketAddr, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            let free = SocketAddr::new(address.ip(), 0);
            format!(" (is another oncewire running? {flag} {free} takes a free port)")
        }
        _ => String::new(),
    }
}

/// Why the gateway could not start.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The address can't be listened on.
    #[error("can't listen on {address}, which {flag} sets{}", advice_on_listening(flag, *address, source))]
    Listen {
        /// What says so on the command line.
        flag: &'static str,
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// TLS can't be served as it is configured.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// An event handler can't be used.
    #[error(transparent)]
    Events(#[from] EventsError),
    /// The store can't be used, or not any more.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no access key.
    #[error("no access key")]
    NoAccessKey,
    /// An access key can't be used.
    #[error(transparent)]
    BadAccessKey(#[from] AccessKeyError),
    /// What is to fail in a test can't be understood.
    #[cfg(feature = "fault-injection")]
    #[error("ONCEWIRE_TEST_FAIL_APPENDS: {0}")]
    BadFaultPlan(#[from] crate::store::FaultPlanError),
}

/// Where a gateway listens.
pub struct Listeners {
    http: Option<TcpListener>,
    https: Option<TcpListener>,
    admin: Option<TcpListener>,
}

impl Listeners {
    /// What is served to clients at which address, https first.
    ///
    /// # Errors
    /// When the operating system does not tell.
    pub fn addresses(&self) -> io::Result<Vec<(Scheme, SocketAddr)>> {
        let listeners = [(Scheme::Https, &self.https), (Scheme::Http, &self.http)];
        let open = listeners.into_iter().filter_map(|(scheme, listener)| Some((scheme, listener.as_ref()?)));
        open.map(|(scheme, listener)| Ok((scheme, listener.local_addr()?))).collect()
    }

    /// Where the operator's machinery is served, if it has an address of its own.
    ///
    /// # Errors
    /// When the operating system does not tell.
    pub fn admin_address(&self) -> io::Result<Option<SocketAddr>> {
        self.admin.as_ref().map(TcpListener::local_addr).transpose()
    }
}

/// Listens on the configured addresses. Clients may dial from now on; they are answered once a gateway runs.
///
/// # Errors
/// When an address can't be listened on.
pub async fn bind(config: &Config) -> Result<Listeners, GatewayError> {
    let [http, https, admin] = config.listeners().map(|(Listener { flag, .. }, address)| {
        let listen =
            |address| edge::listen(address).map_err(|source| GatewayError::Listen { flag, address, source });
        address.map(listen).transpose()
    });
    Ok(Listeners { http: http?, https: https?, admin: admin? })
}

/// Where a gateway keeps what outlives its sockets.
#[derive(Clone)]
pub struct Storage {
    /// The hubs' logs.
    store: Arc<dyn Store>,
    /// What reconnection tokens are made with. It lives as long as the logs.
    reconnection_secret: [u8; 32],
    /// Where files may be kept beside the logs.
    directory: Option<PathBuf>,
    /// What can be copied while it is in use.
    on_disk: Option<Arc<EmbeddedStore>>,
}

impl Storage {
    /// A store whose sessions can be resumed as long as this process, or a clone of this, is there.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, reconnection_secret: rand::random(), directory: None, on_disk: None }
    }

    /// The storage that the configuration asks for.
    ///
    /// # Errors
    /// The data directory can't be used.
    pub fn open(config: &Arc<Config>) -> Result<Self, GatewayError> {
        let storage = match config.store {
            ConfiguredStore::Memory => Self::new(Arc::new(MemoryStore::default())),
            ConfiguredStore::Disk => {
                let hubs = Arc::clone(config);
                let durability = move |hub: &HubName| hubs.hub(hub.as_str()).durability;
                let store = EmbeddedStore::open(&config.data_dir, durability)?;
                let reconnection_secret = store.reconnection_secret()?;
                let directory = Some(config.data_dir.clone());
                let store = Arc::new(store);
                let on_disk = Some(Arc::clone(&store));
                Self { store, reconnection_secret, directory, on_disk }
            }
        };
        storage.with_faults()
    }

    #[cfg(not(feature = "fault-injection"))]
    fn with_faults(self) -> Result<Self, GatewayError> {
        Ok(self)
    }

    /// In such a build appends fail as `ONCEWIRE_TEST_FAIL_APPENDS` says.
    #[cfg(feature = "fault-injection")]
    fn with_faults(self) -> Result<Self, GatewayError> {
        match std::env::var("ONCEWIRE_TEST_FAIL_APPENDS") {
            Ok(plan) => {
                let store = Arc::new(crate::store::FaultyStore::new(self.store, plan.parse()?));
                Ok(Self { store, ..self })
            }
            Err(_) => Ok(self),
        }
    }
}

/// The socket for orders. Without it everything else goes on.
fn listen_for_orders(config: &Config, store: &Arc<EmbeddedStore>) -> Option<Control> {
    let control = Control::listen(&config.data_dir, Arc::clone(store));
    control
        .inspect_err(|error| tracing::warn!(%error, "this gateway can't be asked for a copy of its data"))
        .ok()
}

/// A gateway that is ready to serve.
pub struct Gateway {
    config: Arc<Config>,
    access_keys: AccessKeys,
    tls: Option<Tls>,
    storage: Storage,
    boot: BootId,
    is_supervised: bool,
    readiness: Readiness,
    engine: Engine,
    events: Events,
    config_file: Option<ConfigFile>,
}

impl Gateway {
    /// A gateway with the storage that its configuration asks for.
    ///
    /// # Errors
    /// When the configuration has no access key, or one that can't be used, and the same for TLS and event handlers; or the
    /// storage can't be opened.
    pub fn open(config: Config) -> Result<Self, GatewayError> {
        let config = Arc::new(config);
        let storage = Storage::open(&config)?;
        Self::with(config, storage)
    }

    /// A gateway with a storage of its own.
    ///
    /// # Errors
    /// When the configuration has no access key, or one that can't be used, and the same for TLS and event handlers.
    pub fn new(config: Config, storage: Storage) -> Result<Self, GatewayError> {
        Self::with(Arc::new(config), storage)
    }

    fn with(config: Arc<Config>, storage: Storage) -> Result<Self, GatewayError> {
        let primary = config.access_key.as_ref().ok_or(GatewayError::NoAccessKey)?;
        let secondary = config.secondary_access_key.as_ref();
        let access_keys = AccessKeys::new(primary.expose(), secondary.map(Secret::expose))?;
        let tls = match (&config.tls_cert, &config.tls_key) {
            (Some(certificate), Some(key)) => Some(Tls::from_files(certificate, key)?),
            _ if config.tls_self_signed => {
                Some(Tls::self_signed(storage.directory.as_deref(), &config.public_urls)?)
            }
            _ => None,
        };
        let boot = BootId(rand::random());
        let counters = Arc::<Counters>::default();
        let events = Events::new(&config, access_keys.clone(), Arc::clone(&counters))?;
        let handlers = Arc::new(events.clone());
        let store = Arc::clone(&storage.store);
        let engine = Engine::with_event_handlers(Arc::clone(&config), store, boot, handlers, counters);
        Ok(Self {
            config,
            access_keys,
            tls,
            storage,
            boot,
            is_supervised: false,
            readiness: Readiness::default(),
            engine,
            events,
            config_file: None,
        })
    }

    /// Tells whether another process starts this one again when it is killed.
    pub fn supervised(self, is_supervised: bool) -> Self {
        Self { is_supervised, ..self }
    }

    /// Names the file that the configuration was read from, and what was laid over it: event handlers that change there
    /// are used while the gateway serves.
    pub fn reloading(self, file: &Path, overrides: Overrides) -> Self {
        let file = ConfigFile::new(self.events.clone(), file.to_owned(), overrides, &self.config);
        Self { config_file: Some(file), ..self }
    }

    /// Where the sessions live.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Tells when it takes work. Copies share the state.
    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// Serves until `shutdown` completes, and then until the sockets are closed, or for some seconds. It takes work
    /// ([`Gateway::readiness`]) once each hub that it had before is live or known to be damaged. Until then a hub that is
    /// live already is served, the others are answered 503, and so is the health operation.
    ///
    /// # Errors
    /// When the store can't tell which hubs it has, or can't go on: what is on the disk can only be told by the next start.
    pub async fn serve(
        self,
        listeners: Listeners,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), GatewayError> {
        let engine = self.engine.clone();
        let readiness = self.readiness;
        let gate = Gate::new(&self.config, Arc::clone(engine.counters()));
        let health = Health {
            readiness: readiness.clone(),
            engine: self.engine.clone(),
            start_with_damaged_hubs: self.config.start_with_damaged_hubs,
        };
        let probes = admin::router(health);
        let has_admin = listeners.admin.is_some();
        // First of all: it answers whatever the store takes its time for.
        let operator = listeners.admin.map(|listener| {
            let operations = probes.clone().merge(admin::metrics::router(self.engine.clone()));
            let counters = Arc::clone(self.engine.counters());
            edge::serve_operator(Arc::clone(&self.config), Arc::clone(&gate), listener, operations, counters)
        });
        let _operator = operator.map(|serving| AbortOnDropHandle::new(tokio::spawn(serving)));
        let kept_hubs = engine.start_kept_hubs().await?;
        let _hubs = AbortOnDropHandle::new(tokio::spawn(engine.clone().look_after_hubs()));
        let control = self.storage.on_disk.as_ref().and_then(|store| listen_for_orders(&self.config, store));
        let control = control.map(|control| AbortOnDropHandle::new(tokio::spawn(control.serve())));
        let watch = self.config_file.map(|file| Watch::new(file, None).run());
        let _watch = watch.map(|watch| AbortOnDropHandle::new(tokio::spawn(watch)));
        let api = rest::router(Rest {
            config: Arc::clone(&self.config),
            access_keys: self.access_keys.clone(),
            continuation_tokens: ContinuationTokens::new(self.storage.reconnection_secret),
            engine: self.engine.clone(),
        });
        let api = if self.config.metrics && !has_admin {
            api.merge(admin::metrics::router(self.engine.clone()))
        } else {
            api
        };
        let faults = self.config.demo.then(|| Faults::new(demo::HUB));
        let demo = faults.as_ref().map(|faults| {
            demo::router(Demo {
                config: Arc::clone(&self.config),
                access_keys: self.access_keys.clone(),
                boot: self.boot,
                is_supervised: self.is_supervised,
                faults: Arc::clone(faults),
            })
        });
        let operations = Operations { probes, api, demo: demo.unwrap_or_default() };
        let edge = Edge {
            config: self.config,
            access_keys: self.access_keys,
            reconnection_tokens: ReconnectionTokens::new(self.storage.reconnection_secret),
            engine: self.engine,
            faults,
        };
        let listeners = edge::Listeners { http: listeners.http, https: listeners.https.zip(self.tls), gate };
        let started = async {
            kept_hubs.started().await;
            readiness.started();
            std::future::pending::<()>().await
        };
        let stop = async {
            shutdown.await;
            readiness.stopping();
        };
        tokio::select! {
            () = edge::serve(edge, listeners, operations, stop) => {}
            error = engine.failed() => return Err(error.into()),
            () = started => {}
        }
        // A copy that is being made would hold up the close.
        drop(control);
        Ok(engine.close().await?)
    }
}
