//! JSON from the page, checked.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::refusal::Refusal;

/// The body of a request, an object in JSON. `T` has to refuse fields that it does not know.
pub(super) struct JsonBody<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        if !is_json(request.headers()) {
            return Err(Refusal::NotJson);
        }
        let bytes = Bytes::from_request(request, state).await.map_err(|rejection| {
            match rejection.into_response().status() {
                StatusCode::PAYLOAD_TOO_LARGE => Refusal::TooLarge,
                _ => Refusal::Unreadable,
            }
        })?;
        // An array would do for the fields of a struct in their order.
        let object: Map<String, Value> = serde_json::from_slice(&bytes).map_err(|_| Refusal::BadBody)?;
        T::deserialize(Value::Object(object)).map(Self).map_err(|_| Refusal::BadBody)
    }
}

/// Whether the body is called JSON; parameters such as the charset count for nothing.
fn is_json(headers: &HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = content_type.and_then(|value| value.split(';').next());
    essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/json"))
}
