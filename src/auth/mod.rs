//! Keys and tokens: who may connect, and who may resume.
//!
//! Knows: the access keys, the JSON web tokens that clients present (signing and checking them), the audience that
//! such a token must name, and the reconnection tokens that this gateway hands to its reliable sessions.
//!
//! Does not know: what a role or a group is used for, HTTP, configuration, the clock. Time comes in as seconds since
//! the Unix epoch, settings as plain arguments.
//!
//! No error and no `Debug` output of this module holds a key or a token.

mod all_claims;
mod audience;
mod bearer;
mod client_token;
mod continuation;
mod keys;
mod reconnection;
mod refusals;
mod rest_audience;
mod url_parts;
mod wanted;

pub use all_claims::all_claims;
pub use audience::AudienceContext;
pub use bearer::bearer_token;
pub use client_token::{CLOCK_SKEW_SECONDS, ClientClaims, ClientGrant, SignError, TokenError};
pub use continuation::ContinuationTokens;
pub use keys::{ACCESS_KEY_BYTES_MIN, AccessKeyError, AccessKeys, KeyName};
pub use reconnection::{RECONNECTION_TOKEN_VALIDITY_SECONDS, ReconnectionError, ReconnectionTokens};
pub use refusals::TokenRefusals;
pub use rest_audience::RestAudience;
pub use url_parts::dialled;
pub use wanted::Wanted;
