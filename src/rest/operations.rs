//! What each operation asks the engine for, and the status that says it was done.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use oncewire_protocol::log::{Audience, Selection, Sent};
use oncewire_protocol::wire::GroupName;

use super::body::{self, Bulk, Media};
use super::error::RestError;
use super::query::Query;
use super::route::{self, Call, Kind};
use super::{DUPLICATE, REPEATABLE_ID, Request, Rest, listing, repetition, tokens};
use crate::engine::{Action, CommandError, Done};

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
    let body =
        body::read(&head.headers, body, rest.config.http_body_bytes_max, rest.engine.memory_budget()).await?;
    let payload = media.payload(body.bytes.clone())?;
    let metadata = body::metadata(&head.headers)?;
    let action = Action::Send(Sent { selection, ttl_seconds, payload, metadata });
    ask(rest, request, action, &body.bytes, StatusCode::ACCEPTED).await
}

async fn change_selected(rest: &Rest, request: &Request, body: Body) -> Result<Response, RestError> {
    let media = Media::of(&request.head.headers)?;
    if !matches!(media, Media::Json(_)) {
        return Err(RestError::unsupported_media_type());
    }
    let mut body =
        body::read(&request.head.headers, body, rest.config.http_body_bytes_max, rest.engine.memory_budget())
            .await?;
    let Bulk { groups, filter } = Bulk::read(media, &mut body)?;
    let selection = Selection { filter, ..Selection::whole(Audience::All) };
    let action = match request.call.kind {
        Kind::AddSelected => Action::Add { selection, groups },
        _ => Action::Remove { selection, groups },
    };
    ask(rest, request, action, &body.bytes, StatusCode::OK).await
}

async fn exists(rest: &Rest, call: &Call) -> Result<Response, RestError> {
    let audience = call.audience();
    let (code, target) = match audience {
        Audience::User(_) => ("Warning.User.NotExisted", "User"),
        Audience::Group(_) => ("Warning.Group.NotExisted", "Group"),
        Audience::Connection(_) | Audience::All => ("Warning.Connection.NotExisted", "Connection"),
    };
    let hub = rest.engine.hub_with_sessions(&call.hub).await?;
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
    match carry_out(rest, request, action, &[]).await? {
        // What nobody has need not be taken away.
        Err(CommandError::UnknownConnection) if !allow => Ok(done.into_response()),
        Err(CommandError::UnknownConnection) => {
            Err(RestError::not_found("Info.Connection.NotExisted", "Connection"))
        }
        outcome => answer(request, outcome, done),
    }
}

async fn check(rest: &Rest, call: &Call, query: &Query) -> Result<Response, RestError> {
    let group = target_name(query)?;
    let hub = rest.engine.hub_with_sessions(&call.hub).await?;
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
    let outcome = carry_out(rest, request, action, body).await?;
    answer(request, outcome, done)
}

async fn carry_out(
    rest: &Rest,
    request: &Request,
    action: Action,
    body: &[u8],
) -> Result<Result<Done, CommandError>, RestError> {
    let hub = &request.call.hub;
    let key = repetition::key(request, &rest.config.hub(hub.as_str()), body)?;
    // What a repeatable request came to is remembered in its hub, also where nobody is.
    if request.repeatable.is_some() {
        return Ok(rest.engine.hub_to_join(hub).await?.ask(action, key).await);
    }
    Ok(rest.engine.hub_to_command(hub).await?.ask(action, key).await)
}

fn answer(
    request: &Request,
    outcome: Result<Done, CommandError>,
    done: StatusCode,
) -> Result<Response, RestError> {
    let is_repeatable = request.repeatable.is_some();
    let outcome = outcome.map_err(|error| match error {
        CommandError::OtherRequest if is_repeatable => RestError::rejected(
            StatusCode::BAD_REQUEST,
            REPEATABLE_ID,
            "Another request had this request id.",
        ),
        error => error.into(),
    })?;
    let mut response = done.into_response();
    // A repeatable request is answered letter by letter as the first time.
    if outcome == Done::Repeated && !is_repeatable {
        response.headers_mut().insert(DUPLICATE, HeaderValue::from_static("true"));
    }
    Ok(response)
}
