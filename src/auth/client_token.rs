//! Access tokens, of clients and of applications: JSON web tokens, signed with an access key by HMAC-SHA256 (`HS256`).

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, Header, Validation};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use url::Url;

use super::url_parts::client_endpoint;
use super::wanted::Wanted;
use super::{AccessKeys, AudienceContext, RestAudience};

/// How far the clocks of the signer and of this gateway may differ, in seconds. A token is good up to this long after
/// its `exp` and from this long before its `nbf`.
pub const CLOCK_SKEW_SECONDS: u64 = 300;

/// What a verified client token says about its bearer. Other claims are not kept; [`all_claims`](super::all_claims) has them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientClaims {
    /// `sub`, or the long name-identifier claim type when `sub` is absent or empty; a number is taken as its text. Never
    /// empty, without control characters.
    pub user_id: Option<String>,
    /// `role`, in the token's order, unchecked: what is not a known role has no effect.
    pub roles: Vec<String>,
    /// `webpubsub.group`: the groups that the session joins as it opens. Unchecked names.
    pub groups: Vec<String>,
}

/// Why a client token was refused; the answer is 401 for each. Never holds the token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Not a JSON web token, or a claim has the wrong type.
    #[error("the access token is malformed")]
    Malformed,
    /// Another algorithm than `HS256`, `none` included, or a header extension that must be understood.
    #[error("the access token is not signed with HS256")]
    UnsupportedAlgorithm,
    /// None of the access keys made the signature.
    #[error("the access token is not signed with this gateway's access key")]
    BadSignature,
    /// There is no `exp` claim.
    #[error("the access token has no expiry")]
    NoExpiry,
    /// `exp` lies more than the clock skew in the past.
    #[error("the access token has expired")]
    Expired,
    /// `nbf` lies more than the clock skew in the future.
    #[error("the access token is not valid yet")]
    NotYetValid,
    /// The user's name has control characters, which the application could take for the end of a header.
    #[error("the access token names a user with control characters")]
    BadUser,
    /// `aud` is absent or names another endpoint.
    #[error("the access token is for another audience: its aud names another URL; wanted: {0}")]
    WrongAudience(Wanted),
}

/// What a new client token is to say.
#[derive(Debug, Clone)]
pub struct ClientGrant<'a> {
    /// The public base URL of the gateway (`http` or `https`), perhaps with a path prefix.
    pub endpoint: &'a Url,
    /// The hub that the token opens.
    pub hub: &'a str,
    /// The user, if any.
    pub user_id: Option<&'a str>,
    /// The roles.
    pub roles: &'a [String],
    /// The groups that the session joins as it opens.
    pub groups: &'a [String],
    /// Lifetime in seconds.
    pub validity_seconds: u64,
}

/// Why a client token could not be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    /// The endpoint is not an `http` or `https` URL.
    #[error("the endpoint is not an http or https URL")]
    BadEndpoint,
    /// The user's name has control characters: this gateway would refuse the token.
    #[error("the user's name has control characters")]
    BadUser,
    /// The claims could not be encoded or signed.
    #[error("the access token could not be signed")]
    Failed,
}

impl AccessKeys {
    /// Checks a client token and returns its claims.
    ///
    /// # Errors
    /// Signature first, then the claims: nothing that an unsigned token says decides anything but its algorithm's
    /// refusal.
    pub fn verify_client_token(
        &self,
        token: &str,
        audience: &AudienceContext<'_>,
        now_unix_seconds: u64,
    ) -> Result<ClientClaims, TokenError> {
        let accepts = |aud: &str| audience.accepts(aud);
        let claims = self.verify_claims(token, accepts, || audience.wanted(), now_unix_seconds)?;
        let named = |user: &String| !user.is_empty();
        let user_id = claims.sub.filter(named).or(claims.name_identifier.filter(named));
        if user_id.as_deref().is_some_and(is_bad_user) {
            return Err(TokenError::BadUser);
        }
        Ok(ClientClaims {
            user_id,
            roles: OneOrMany::list(claims.role),
            groups: OneOrMany::list(claims.group),
        })
    }

    /// Makes a client token, signed with the primary key.
    ///
    /// # Errors
    /// When the endpoint is not an `http` or `https` URL, or the user's name has control characters.
    pub fn sign_client_token(
        &self,
        grant: &ClientGrant<'_>,
        now_unix_seconds: u64,
    ) -> Result<String, SignError> {
        let endpoint = grant.client_endpoint()?;
        if grant.user_id.is_some_and(is_bad_user) {
            return Err(SignError::BadUser);
        }
        let claims = SignedClaims {
            aud: endpoint.as_str(),
            iat: now_unix_seconds,
            exp: now_unix_seconds.saturating_add(grant.validity_seconds),
            sub: grant.user_id,
            role: grant.roles,
            group: grant.groups,
        };
        let header = Header::new(Algorithm::HS256);
        jsonwebtoken::encode(&header, &claims, self.signing()).map_err(|_| SignError::Failed)
    }

    /// Makes a client token and the URL that a client opens with it:
    /// `ws(s)://host[:port][/prefix]/client/hubs/{hub}?access_token=…`.
    ///
    /// # Errors
    /// As for the token.
    pub fn client_url(&self, grant: &ClientGrant<'_>, now_unix_seconds: u64) -> Result<Url, SignError> {
        let token = self.sign_client_token(grant, now_unix_seconds)?;
        let mut url = grant.client_endpoint()?;
        let scheme = if url.scheme() == "https" { "wss" } else { "ws" };
        url.set_scheme(scheme).map_err(|()| SignError::BadEndpoint)?;
        url.query_pairs_mut().append_pair("access_token", &token);
        Ok(url)
    }

    /// Checks a token of the application for one request of the data-plane REST API. What it says beside its audience and
    /// its time counts for nothing: whoever has an access key may do everything.
    ///
    /// # Errors
    /// As for a client token.
    pub fn verify_rest_token(
        &self,
        token: &str,
        audience: &RestAudience<'_>,
        now_unix_seconds: u64,
    ) -> Result<(), TokenError> {
        let accepts = |aud: &str| audience.accepts(aud);
        self.verify_claims(token, accepts, || audience.wanted(), now_unix_seconds).map(drop)
    }

    fn verify_claims(
        &self,
        token: &str,
        accepts: impl Fn(&str) -> bool,
        wanted: impl FnOnce() -> Wanted,
        now_unix_seconds: u64,
    ) -> Result<ReceivedClaims, TokenError> {
        let mut claims = self.verify_signature(token)?;
        // Both times may be fractional; below 2^53 the conversion is exact.
        let now = now_unix_seconds as f64;
        let skew = CLOCK_SKEW_SECONDS as f64;
        match claims.exp {
            None => return Err(TokenError::NoExpiry),
            Some(exp) if now > exp + skew => return Err(TokenError::Expired),
            Some(_) => {}
        }
        if claims.nbf.is_some_and(|nbf| nbf > now + skew) {
            return Err(TokenError::NotYetValid);
        }
        if !OneOrMany::list(claims.aud.take()).iter().any(|aud| accepts(aud)) {
            return Err(TokenError::WrongAudience(wanted()));
        }
        Ok(claims)
    }

    fn verify_signature(&self, token: &str) -> Result<ReceivedClaims, TokenError> {
        let mut validation = Validation::new(Algorithm::HS256);
        // Times are checked against the caller's clock, and an audience is compared as a URL, not as text.
        validation.required_spec_claims.clear();
        validation.validate_exp = false;
        validation.validate_nbf = false;
        validation.validate_aud = false;
        let mut refused = TokenError::BadSignature;
        for key in self.verifying() {
            match jsonwebtoken::decode::<ReceivedClaims>(token, key, &validation) {
                Ok(verified) if verified.header.crit.is_some() => {
                    return Err(TokenError::UnsupportedAlgorithm);
                }
                Ok(verified) => return Ok(verified.claims),
                Err(error) => refused = refusal(error.kind(), token),
            }
            if refused != TokenError::BadSignature {
                break;
            }
        }
        Err(refused)
    }
}

impl ClientGrant<'_> {
    /// The URL that names the hub to clients; also the token's audience.
    fn client_endpoint(&self) -> Result<Url, SignError> {
        if !matches!(self.endpoint.scheme(), "http" | "https") {
            return Err(SignError::BadEndpoint);
        }
        client_endpoint(self.endpoint, self.hub).ok_or(SignError::BadEndpoint)
    }
}

fn refusal(kind: &ErrorKind, token: &str) -> TokenError {
    match kind {
        ErrorKind::InvalidSignature => TokenError::BadSignature,
        ErrorKind::InvalidAlgorithm | ErrorKind::UnsupportedAlgorithm => TokenError::UnsupportedAlgorithm,
        // An algorithm that the library has no name for, `none` above all, fails as unreadable JSON.
        ErrorKind::Json(_) if jsonwebtoken::decode_header(token).is_err() => TokenError::UnsupportedAlgorithm,
        _ => TokenError::Malformed,
    }
}

#[derive(Deserialize)]
struct ReceivedClaims {
    aud: Option<OneOrMany>,
    exp: Option<f64>,
    nbf: Option<f64>,
    #[serde(default, deserialize_with = "text_or_number")]
    sub: Option<String>,
    #[serde(default, deserialize_with = "text_or_number")]
    #[serde(rename = "http://schemas.xmlsoap.org/ws/2005/05/identity/claims/nameidentifier")]
    name_identifier: Option<String>,
    role: Option<OneOrMany>,
    #[serde(rename = "webpubsub.group")]
    group: Option<OneOrMany>,
}

/// Applications that number their users sign the number; it is taken as it is written.
fn text_or_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let Some(claim) = Option::<Box<RawValue>>::deserialize(deserializer)? else { return Ok(None) };
    let text = claim.get();
    if text.starts_with(|first: char| first == '-' || first.is_ascii_digit()) {
        return Ok(Some(text.to_owned()));
    }
    serde_json::from_str(text).map_err(|_| D::Error::custom("neither a text nor a number"))
}

fn is_bad_user(user: &str) -> bool {
    user.contains(char::is_control)
}

/// A claim that is a string or an array of strings: a claim given several times is serialised as an array.
#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    fn list(claim: Option<Self>) -> Vec<String> {
        match claim {
            None => Vec::new(),
            Some(Self::One(value)) => vec![value],
            Some(Self::Many(values)) => values,
        }
    }
}

#[derive(Serialize)]
struct SignedClaims<'a> {
    aud: &'a str,
    iat: u64,
    exp: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    sub: Option<&'a str>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    role: &'a [String],
    #[serde(rename = "webpubsub.group", skip_serializing_if = "<[String]>::is_empty")]
    group: &'a [String],
}

#[cfg(test)]
mod tests;
