//! A store whose appends fail as a test asks, behind a real gateway. Only in builds with the feature
//! `fault-injection`.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt, ready};
use oncewire_protocol::log::{Body, Certainty, Record, Time};
use oncewire_protocol::wire::HubName;
use parking_lot::Mutex;

use super::{Interception, Log, Store, StoreError, StoreErrorCause, intercept};

/// Which appends fail, counted over those that hold a client's publish, from 1: `definite:3,indefinite:7`. A
/// definite one stores nothing; an indefinite one stores everything and fails all the same.
#[derive(Debug, Clone, Default)]
pub struct FaultPlan(BTreeMap<u64, Certainty>);

/// A plan that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected `definite:N` or `indefinite:N`, separated by commas")]
pub struct FaultPlanError;

impl FromStr for FaultPlan {
    type Err = FaultPlanError;

    fn from_str(text: &str) -> Result<Self, FaultPlanError> {
        let fault = |part: &str| {
            let (certainty, number) = part.trim().split_once(':')?;
            let certainty = match certainty {
                "definite" => Certainty::Definite,
                "indefinite" => Certainty::Indefinite,
                _ => return None,
            };
            Some((number.parse().ok()?, certainty))
        };
        text.split(',').map(|part| fault(part).ok_or(FaultPlanError)).collect::<Result<_, _>>().map(Self)
    }
}

/// Wraps a store so that planned appends fail.
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    plan: Arc<Mutex<Plan>>,
}

struct Plan {
    appends: u64,
    faults: FaultPlan,
}

impl FaultyStore {
    /// Counts over all hubs of `inner`.
    pub fn new(inner: Arc<dyn Store>, faults: FaultPlan) -> Self {
        Self { inner, plan: Arc::new(Mutex::new(Plan { appends: 0, faults })) }
    }
}

impl Store for FaultyStore {
    fn open(&self, hub: &HubName) -> BoxFuture<'_, Result<Arc<dyn Log>, StoreError>> {
        let opening = self.inner.open(hub);
        let plan = Arc::clone(&self.plan);
        async move { Ok(intercept(opening.await?, Faults(plan))) }.boxed()
    }

    fn close_hub(&self, hub: &HubName, empty_since: Time) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.close_hub(hub, empty_since)
    }

    fn remove(&self, hub: &HubName) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.remove(hub)
    }

    fn hubs(&self) -> BoxFuture<'_, Result<Vec<HubName>, StoreError>> {
        self.inner.hubs()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.close()
    }
}

struct Faults(Arc<Mutex<Plan>>);

impl Faults {
    fn next(&self, records: &[Arc<Record>]) -> Option<Certainty> {
        if !records.iter().any(|record| matches!(record.body, Body::Published(_))) {
            return None;
        }
        let mut plan = self.0.lock();
        plan.appends += 1;
        let number = plan.appends;
        plan.faults.0.remove(&number)
    }
}

impl Interception for Faults {
    fn append(
        &self,
        log: &Arc<dyn Log>,
        records: Vec<Arc<Record>>,
    ) -> BoxFuture<'static, Result<(), StoreError>> {
        let failed = |certainty| StoreError { certainty, cause: StoreErrorCause::Injected };
        match self.next(&records) {
            None => log.append(records),
            Some(Certainty::Definite) => ready(Err(failed(Certainty::Definite))).boxed(),
            Some(Certainty::Indefinite) => {
                let append = log.append(records);
                async move { append.await.and(Err(failed(Certainty::Indefinite))) }.boxed()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_read_and_bad_ones_refused() {
        let plan: FaultPlan = "definite:3, indefinite:7".parse().unwrap();
        assert_eq!(plan.0, BTreeMap::from([(3, Certainty::Definite), (7, Certainty::Indefinite)]));
        for bad in ["", "definite", "definite:x", "perhaps:1", "definite:1,,"] {
            assert!(bad.parse::<FaultPlan>().is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn without_planned_faults_it_keeps_the_contract_of_what_it_wraps() {
        crate::store::conformance::run(|| async {
            let inner = Arc::new(super::super::MemoryStore::default());
            Arc::new(FaultyStore::new(inner, FaultPlan::default())) as Arc<dyn Store>
        })
        .await;
    }
}
