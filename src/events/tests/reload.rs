//! Another configuration while events are under way.

use std::fs;

use tokio::sync::Semaphore;

use super::*;
use crate::engine::{EventHandlers, Handled};
use crate::gateway::ConfigFile;
use crate::reload::{Outcome, Watch};

#[tokio::test]
async fn an_event_stays_with_the_handler_it_began_with_and_the_next_goes_to_the_new_one() {
    let turns = Arc::new(Semaphore::new(0));
    let wait = Arc::clone(&turns);
    let old = Application::serve(move |seen| {
        let wait = Arc::clone(&wait);
        async move {
            if seen.method == Method::OPTIONS {
                return leave().into_response();
            }
            wait.acquire().await.unwrap().forget();
            status(204)
        }
        .boxed()
    })
    .await;
    let new = Application::start(|_| status(204)).await;
    let handlers = old.handlers("");
    let mut changes = handlers.changes();
    let under_way = tokio::spawn(handlers.user_event(&hub(), user_event("a", "hi")));
    eventually(|| old.events().len() == 1).await;
    assert!(handlers.replace(&config(&handler(new.address, ""))).unwrap());
    assert!(changes.has_changed().unwrap());
    changes.mark_unchanged();
    assert_eq!(handlers.user_event(&hub(), user_event("a", "hi")).await, Ok(Handled::default()));
    assert_eq!(new.events().len(), 1);
    turns.add_permits(1);
    assert_eq!(under_way.await.unwrap(), Ok(Handled::default()));
    assert_eq!(old.events().len(), 1);
    // The same again is no change.
    assert!(!handlers.replace(&config(&handler(new.address, ""))).unwrap());
    assert!(!changes.has_changed().unwrap());
}

#[tokio::test]
async fn a_handler_that_did_not_change_is_not_asked_again() {
    let application = Application::start(|_| status(204)).await;
    let handlers = application.handlers("");
    handlers.user_event(&hub(), user_event("a", "hi")).await.unwrap();
    let both =
        format!("{}{}", handler(application.address, ""), handler(application.address, "requests_max = 1"));
    assert!(handlers.replace(&config(&both)).unwrap());
    handlers.user_event(&hub(), user_event("a", "hi")).await.unwrap();
    assert_eq!(application.with_method(&Method::OPTIONS).len(), 1);
}

#[tokio::test]
async fn a_changed_file_is_used_and_a_wrong_one_is_refused_with_the_reason() {
    let (old, new) = (Application::start(|_| status(204)).await, Application::start(|_| status(204)).await);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("oncewire.toml");
    let rest = "public_urls = [\"https://gateway.example.net\"]\n";
    let write = |handlers: &str| fs::write(&path, format!("{rest}{handlers}")).unwrap();
    write(&handler(old.address, ""));
    let started_with = Config::load(Some(&path), Overrides::default()).unwrap();
    let handlers = Events::new(&started_with, AccessKeys::new(KEY, None).unwrap(), Arc::default()).unwrap();
    let file = ConfigFile::new(handlers.clone(), path.clone(), Overrides::default(), &started_with);
    let mut watch = Watch::new(file, None);
    assert!(matches!(watch.look(), Outcome::Nothing));
    let event = async || handlers.user_event(&hub(), user_event("a", "hi")).await.unwrap();
    for (wrong, reason) in [
        ("[[hubs.chat.event_handlers]]\nurl_template = \"tunnel:///x\"", "url_template"),
        ("[[hubs.chat.event_handlers]]\nuser_event_pattern = \"*\"", "url_template"),
        ("[[hubs.\"no hub\".event_handlers]]\nurl_template = \"http://a.example/\"", "no hub"),
        ("not toml", "line 2"),
        (&handler(new.address, "user_event_patern = \"*\""), "user_event_patern"),
        ("session_retention_seconds = 0", "session_retention_seconds"),
        (
            "[[hubs.chat.event_handlers]]\nurl_template = \"https://a.example/\"\ntls_ca = \"/nowhere/ca.pem\"",
            "hubs.\"chat\".event_handlers[0]: tls_ca: no certificate can be read from /nowhere/ca.pem",
        ),
    ] {
        write(wrong);
        // The first look may have found it half written.
        assert!(matches!(watch.look(), Outcome::Nothing), "{wrong}");
        let Outcome::Refused(error) = watch.look() else { panic!("{wrong}") };
        assert!(error.to_string().contains(reason), "{error}");
        assert!(matches!(watch.look(), Outcome::Nothing));
        event().await;
    }
    assert_eq!((old.events().len(), new.events().len()), (7, 0));
    write(&handler(new.address, ""));
    assert!(matches!(watch.look(), Outcome::Taken));
    event().await;
    assert_eq!((old.events().len(), new.events().len()), (7, 1));
    // What is not about event handlers waits for the next start.
    write(&format!("session_retention_seconds = 99\n{}", handler(new.address, "")));
    assert!(matches!(watch.look(), Outcome::Nothing));
    fs::remove_file(&path).unwrap();
    assert!(matches!((watch.look(), watch.look()), (Outcome::Nothing, Outcome::Refused(_))));
    event().await;
    write("");
    assert!(matches!(watch.look(), Outcome::Taken));
    assert!(!handlers.takes_connect(&hub()));
}
