//! The embedded store against the contract, and against what disks and machines do.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn the_embedded_store_keeps_the_contract() {
    for durability in [Durability::Sync, Durability::Os, Durability::Memory] {
        let directories = Mutex::new(Vec::new());
        crate::store::conformance::run(|| async {
            let directory = tempfile::tempdir().unwrap();
            let store = EmbeddedStore::open(directory.path(), move |_| durability).unwrap();
            directories.lock().push(directory);
            Arc::new(store) as Arc<dyn Store>
        })
        .await;
    }
}
