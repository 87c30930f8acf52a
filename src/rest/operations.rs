//! What each operation asks the engine for, and the status that says it was done.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, request};
use axum::response::{IntoResponse, Response};
use oncewire_protocol::log::{Audience, RequestKey, RequestName, Selection, Sent};
use oncewire_protocol::wire::GroupName;

use super::body::{self, Bulk, Media};
use super::error::RestError;
use super::query::Query;
use super::route::{self, Call, Kind};
use super::{DUPLICATE, Rest, listing, tokens};
use crate::config::Idempotency;
use crate::engine::{self, Action, CommandError, Done};

/// The application's own name for a request.
const REQUEST_ID: &str = "x-ms-client-request-id";
/// Such a name, in bytes.
const REQUEST_ID_BYTES_MAX: usize = 256;

/// A request whose operation is known.
pub(super) struct Request {
    pub(super) head: request::Parts,
    pub(super) query: Query,
    pub(super) version: Option<String>,
    pub(super) call: Call,
}

/// Carries out an operation.
pub(super) async fn run(rest: &Rest, request: &Request, body: Body) -> Result<Response, RestError> {
    let Request { call, query, .. } = request;
    match call.kind {
        Kind::Send => send(rest, request, body).await,
        Kind::Close => {
            let excluded = match call.audience() {
                Audience::Connection(_) => Vec::new(),
                _ => query.excluded(),
            };
            let selection = Selection { excluded, ..Selection::whole(call.audience()) };
            let reason = query.one("reason")?.unwrap_or_default().to_owned();
            ask(rest, request, Action::Close { selection, reason }, &[], StatusCode::NO_CONTENT).await
        }
        Kind::Exists => exists(rest, call).await,
        Kind::Add => {
            let action =
                Action::Add { selection: Selection::whole(call.audience()), groups: vec![call.group()?] };
            ask(rest, request, action, &[], StatusCode::OK).await
        }
        Kind::Remove => {
            let action =
                Action::Remove { selection: Selection::whole(call.audience()), groups: vec![call.group()?] };
            ask(rest, request, action, &[], StatusCode::NO_CONTENT).await
        }
        Kind::RemoveFromAll => {
            let action = Action::Remove { selection: Selection::whole(call.audience()), groups: Vec::new() };
            ask(rest, request, action, &[], StatusCode::NO_CONTENT).await
        }
        Kind::AddSelected | Kind::RemoveSelected => change_selected(rest, request, body).await,
        Kind::Grant => change_rule(rest, request, true).await,
        Kind::Revoke => change_rule(rest, request, false).await,
        Kind::Check => check(rest, call, query).await,
        Kind::List => listing::list(rest, request).await,
        Kind::GenerateToken => tokens::generate(rest, request),
    }
}

async fn send(rest: &Rest, request: &Request, body: Body) -> Result<Response, RestError> {
    let Request { call, query, head, .. } = request;
    let audience = call.audience();
    let is_narrowed = !matches!(audience, Audience::Connection(_));
    let may_exclude = is_narrowed && !matches!(audience, Audience::User(_));
    let selection = Selection {
        audience,
        excluded: if may_exclude { query.excluded() } else { Vec::new() },
        filter: if is_narrowed { query.filter()? } else { None },
    };
    let ttl_seconds = query.ttl_seconds()?;
    let media = Media::of(&head.headers)?;
    let body = body::read(body, rest.config.http_body_bytes_max).await?;
    let payload = media.payload(body.clone())?;
    let metadata = body::metadata(&head.headers)?;
    let action = Action::Send(Sent { selection, ttl_seconds, payload, metadata });
    ask(rest, request, action, &body, StatusCode::ACCEPTED).await
}

async fn change_selected(rest: &Rest, request: &Request, body: Body) -> Result<Response, RestError> {
    let media = Media::of(&request.head.headers)?;
    if !matches!(media, Media::Json(_)) {
        return Err(RestError::unsupported_media_type());
    }
    let body = body::read(body, rest.config.http_body_bytes_max).await?;
    let Bulk { groups, filter } = Bulk::read(media, body.clone())?;
    let selection = Selection { filter, ..Selection::whole(Audience::All) };
    let action = match request.call.kind {
        Kind::AddSelected => Action::Add { selection, groups },
        _ => Action::Remove { selection, groups },
    };
    ask(rest, request, action, &body, StatusCode::OK).await
}

async fn exists(rest: &Rest, call: &Call) -> Result<Response, RestError> {
    let audience = call.audience();
    let (code, target) = match audience {
        Audience::User(_) => ("Warning.User.NotExisted", "User"),
        Audience::Group(_) => ("Warning.Group.NotExisted", "Group"),
        Audience::Connection(_) | Audience::All => ("Warning.Connection.NotExisted", "Connection"),
    };
    let hub = rest.engine.existing_hub(&call.hub).await?;
    let exists = match hub {
        Some(hub) => hub.has(audience).await?,
        None => false,
    };
    if exists { Ok(StatusCode::OK.into_response()) } else { Err(RestError::not_found(code, target)) }
}

/// The group that a permission is about.
fn target_name(query: &Query) -> Result<GroupName, RestError> {
    route::group_name("targetName", query.one("targetName")?.unwrap_or_default())
}

async fn change_rule(rest: &Rest, request: &Request, allow: bool) -> Result<Response, RestError> {
    let Request { call, query, .. } = request;
    let action = Action::ChangeRule {
        connection_id: call.connection_id()?,
        permission: call.permission()?,
        group: target_name(query)?,
        allow,
    };
    let done = if allow { StatusCode::OK } else { StatusCode::NO_CONTENT };
    let hub = rest.engine.commanded_hub(&call.hub).await?;
    let outcome = hub.ask(action, idempotency(rest, request, &[])?).await;
    match outcome {
        // What nobody has need not be taken away.
        Err(CommandError::UnknownConnection) if !allow => Ok(done.into_response()),
        Err(CommandError::UnknownConnection) => {
            Err(RestError::not_found("Info.Connection.NotExisted", "Connection"))
        }
        outcome => Ok(answer(outcome?, done)),
    }
}

async fn check(rest: &Rest, call: &Call, query: &Query) -> Result<Response, RestError> {
    let group = target_name(query)?;
    let hub = rest.engine.existing_hub(&call.hub).await?;
    let allows = match hub {
        Some(hub) => hub.allows(call.connection_id()?, call.permission()?, group).await?,
        None => false,
    };
    let refused = || RestError::not_found("Info.Connection.NotExisted", "Connection");
    if allows { Ok(StatusCode::OK.into_response()) } else { Err(refused()) }
}

/// Asks the engine for something that changes state.
async fn ask(
    rest: &Rest,
    request: &Request,
    action: Action,
    body: &[u8],
    done: StatusCode,
) -> Result<Response, RestError> {
    let idempotency = idempotency(rest, request, body)?;
    let hub = rest.engine.commanded_hub(&request.call.hub).await?;
    Ok(answer(hub.ask(action, idempotency).await?, done))
}

fn answer(outcome: Done, status: StatusCode) -> Response {
    let mut response = status.into_response();
    if outcome == Done::Repeated {
        response.headers_mut().insert(DUPLICATE, HeaderValue::from_static("true"));
    }
    response
}

/// By what the request is recognised when it comes again; nothing if it has no id or the hub does not want it.
fn idempotency(rest: &Rest, request: &Request, body: &[u8]) -> Result<Option<engine::Request>, RestError> {
    let Request { head, call, .. } = request;
    let settings = rest.config.hub(call.hub.as_str());
    let Some(id) = request_id(&head.headers)?.filter(|_| settings.idempotency != Idempotency::Off) else {
        return Ok(None);
    };
    let target = head.uri.path_and_query().map_or("", |target| target.as_str());
    let bound = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let key = RequestKey {
        name: RequestName::of(id, head.method.as_str(), target, body),
        window_seconds: bound(settings.idempotency_window_seconds),
        window_requests: bound(settings.idempotency_requests_max as u64),
    };
    Ok(Some(engine::Request { key, is_strict: settings.idempotency == Idempotency::Strict }))
}

fn request_id(headers: &HeaderMap) -> Result<Option<&str>, RestError> {
    let Some(id) = headers.get(REQUEST_ID).filter(|id| !id.is_empty()) else { return Ok(None) };
    let id = id.to_str().ok().filter(|id| id.len() <= REQUEST_ID_BYTES_MAX);
    id.map(Some).ok_or_else(|| {
        let message = format!("The request id is no text of at most {REQUEST_ID_BYTES_MAX} bytes.");
        RestError::bad_request(REQUEST_ID, message)
    })
}
