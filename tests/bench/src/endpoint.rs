//! Where a server listens and the key that it accepts, as its ready line tells.

use std::net::SocketAddr;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};

use crate::message::{GROUP, HUB};
use crate::token::{self, Claims};

const TOKEN_LIFETIME: Duration = Duration::from_secs(3600);

/// A running server, read from `... Endpoint=http://HOST:PORT;AccessKey=KEY;Version=1.0;`. The host is an IP address.
#[derive(Clone)]
pub struct Endpoint {
    /// The address to connect to.
    pub address: SocketAddr,
    access_key: String,
}

/// What a client is there for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Member of [`GROUP`] from the start.
    Subscribe,
    /// May send to every group, is in none.
    Publish,
}

impl Endpoint {
    /// Path and query by which a client with this purpose connects.
    ///
    /// # Errors
    /// The clock stands before 1970.
    pub fn client_target(&self, purpose: Purpose) -> Result<String> {
        self.client_target_in(HUB, purpose, None)
    }

    /// The same in another hub, and perhaps for a user.
    ///
    /// # Errors
    /// The clock stands before 1970.
    pub fn client_target_in(&self, hub: &str, purpose: Purpose, user: Option<&str>) -> Result<String> {
        let path = format!("/client/hubs/{hub}");
        let (roles, groups) = match purpose {
            Purpose::Subscribe => (Vec::new(), vec![GROUP.to_owned()]),
            Purpose::Publish => (vec!["webpubsub.sendToGroup".to_owned()], Vec::new()),
        };
        let token = self.token(&path, user, roles, groups)?;
        Ok(format!("{path}?access_token={token}"))
    }

    /// Path and query of a client in [`HUB`] with these roles and groups.
    ///
    /// # Errors
    /// The clock stands before 1970.
    pub fn target_with(&self, roles: &[&str], groups: &[&str]) -> Result<String> {
        let path = format!("/client/hubs/{HUB}");
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let token = self.token(&path, None, owned(roles), owned(groups))?;
        Ok(format!("{path}?access_token={token}"))
    }

    /// The token of an application for a request to this path.
    ///
    /// # Errors
    /// The clock stands before 1970.
    pub fn rest_token(&self, path: &str) -> Result<String> {
        self.token(path, None, Vec::new(), Vec::new())
    }

    fn token(
        &self,
        path: &str,
        user: Option<&str>,
        roles: Vec<String>,
        groups: Vec<String>,
    ) -> Result<String> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let claims = Claims {
            audience: format!("http://{}{path}", self.address),
            expires_at_seconds: (now + TOKEN_LIFETIME).as_secs(),
            user: user.map(str::to_owned),
            roles,
            groups,
        };
        token::sign(&claims, &self.access_key)
    }
}

impl FromStr for Endpoint {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> Result<Self> {
        let after = |marker| line.split_once(marker).and_then(|(_, rest)| rest.split(';').next());
        let address = after("Endpoint=http://").context("no Endpoint=http:// in the connection string")?;
        Ok(Self {
            address: address
                .trim_end_matches('/')
                .parse()
                .with_context(|| format!("no IP address: {address}"))?,
            access_key: after("AccessKey=").context("no AccessKey in the connection string")?.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_ready_line() {
        let line = "connection string: Endpoint=http://127.0.0.1:8080;AccessKey=a+b/c==;Version=1.0;";
        let endpoint: Endpoint = line.parse().unwrap();
        assert_eq!(endpoint.address.port(), 8080);
        assert_eq!(endpoint.access_key, "a+b/c==");
        assert!("listening on 127.0.0.1:8080".parse::<Endpoint>().is_err());
    }

    #[test]
    fn only_subscribers_name_a_group() {
        let endpoint: Endpoint = "Endpoint=http://127.0.0.1:1;AccessKey=k;".parse().unwrap();
        assert!(token::names_a_group(&endpoint.client_target(Purpose::Subscribe).unwrap()));
        assert!(!token::names_a_group(&endpoint.client_target(Purpose::Publish).unwrap()));
    }
}
