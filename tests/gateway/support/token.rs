//! Client access tokens, made by hand: a JSON Web Token with HS256, as the server SDKs make them.

use std::time::{SystemTime, UNIX_EPOCH};

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Map, Value, json};

use super::ACCESS_KEY;

/// The clock as tokens count.
pub fn now_unix_seconds() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64
}

/// A token in the making.
#[derive(Clone)]
pub struct Token {
    claims: Map<String, Value>,
    key: String,
    algorithm: Algorithm,
}

impl Token {
    /// A token without user, roles and groups, good for an hour.
    pub fn bare() -> Self {
        let mut token = Self { claims: Map::new(), key: ACCESS_KEY.to_owned(), algorithm: Algorithm::HS256 };
        token = token.claim("exp", json!(now_unix_seconds() + 3600));
        token
    }

    /// A user who may join every group and publish to it.
    pub fn user(name: &str) -> Self {
        Self::bare().named(name).role("webpubsub.joinLeaveGroup").role("webpubsub.sendToGroup")
    }

    /// Names the user.
    pub fn named(self, name: &str) -> Self {
        self.claim("sub", json!(name))
    }

    /// Adds a role.
    pub fn role(self, role: &str) -> Self {
        self.push("role", role)
    }

    /// Adds a group to be in from the start.
    pub fn group(self, group: &str) -> Self {
        self.push("webpubsub.group", group)
    }

    /// Sets any claim; null takes it out.
    pub fn claim(mut self, name: &str, value: Value) -> Self {
        match value {
            Value::Null => self.claims.remove(name),
            value => self.claims.insert(name.to_owned(), value),
        };
        self
    }

    /// Signs with another key.
    pub fn key(mut self, key: &str) -> Self {
        self.key = key.to_owned();
        self
    }

    /// Signs with another algorithm.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        self
    }

    /// The token for an audience, which a claim set by hand replaces.
    pub fn sign(&self, audience: &str) -> String {
        let mut claims = self.claims.clone();
        claims.entry("aud").or_insert(json!(audience));
        let key = EncodingKey::from_secret(self.key.as_bytes());
        jsonwebtoken::encode(&Header::new(self.algorithm), &claims, &key).unwrap()
    }

    fn push(mut self, claim: &str, value: &str) -> Self {
        let list = self.claims.entry(claim).or_insert_with(|| json!([]));
        list.as_array_mut().unwrap().push(json!(value));
        self
    }
}
