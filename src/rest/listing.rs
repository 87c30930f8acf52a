//! The connections in a group, in pages.

use axum::Json;
use axum::response::{IntoResponse, Response};
use oncewire_protocol::wire::ConnectionId;
use serde::Serialize;
use url::Url;

use super::error::RestError;
use super::{Request, Rest};
use crate::engine::Member;

/// Rows of a page.
const PAGE_ROWS_MAX: u32 = 200;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    value: Vec<Row>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_link: Option<Url>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    connection_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_id: Option<String>,
}

/// One page. The next one begins behind its last connection, whoever comes and goes meanwhile.
pub(super) async fn list(rest: &Rest, request: &Request) -> Result<Response, RestError> {
    let Request { call, query, .. } = request;
    let rows_max = query.number("maxpagesize", 1..=PAGE_ROWS_MAX)?;
    let top = query.number("top", 1..=i32::MAX as u32)?;
    let group = call.group()?;
    let behind = match query.one("continuationToken")? {
        None => None,
        Some(token) => {
            let verified = rest.continuation_tokens.verify(token, call.hub.as_str(), group.as_str());
            let refused =
                || RestError::bad_request("continuationToken", "The continuation token is not valid.");
            Some(ConnectionId::new(&verified.ok_or_else(refused)?))
        }
    };
    let rows = rows_max.unwrap_or(PAGE_ROWS_MAX).min(top.unwrap_or(u32::MAX));
    let mut members = match rest.engine.hub_with_sessions(&call.hub).await? {
        // One more shows whether there is another page.
        Some(hub) => hub.members(group.clone(), behind, rows as usize + 1).await?,
        None => Vec::new(),
    };
    let has_more = members.len() > rows as usize;
    members.truncate(rows as usize);
    let rest_of_top = top.map(|top| top - rows);
    let last = members.last().filter(|_| has_more && rest_of_top != Some(0));
    let next_link = match last {
        None => None,
        Some(last) => {
            let token = rest.continuation_tokens.issue(
                call.hub.as_str(),
                group.as_str(),
                last.connection_id.as_str(),
            );
            Some(next_link(rest, request, rows_max, rest_of_top, &token)?)
        }
    };
    let row = |Member { connection_id, user_id }: Member| Row {
        connection_id: connection_id.to_string(),
        user_id: user_id.map(|user_id| user_id.to_string()),
    };
    let page = Page { value: members.into_iter().map(row).collect(), next_link };
    Ok(Json(page).into_response())
}

/// The URL of the next page. Its path is the one of this request, letter by letter.
fn next_link(
    rest: &Rest,
    request: &Request,
    rows_max: Option<u32>,
    top: Option<u32>,
    token: &str,
) -> Result<Url, RestError> {
    let mut url = rest.base_url(&request.head)?;
    let path = format!("{}{}", url.path().trim_end_matches('/'), request.head.uri.path());
    url.set_path(&path);
    url.set_query(None);
    let mut query = url.query_pairs_mut();
    if let Some(version) = &request.version {
        query.append_pair("api-version", version);
    }
    for (name, number) in [("maxpagesize", rows_max), ("top", top)] {
        if let Some(number) = number {
            query.append_pair(name, &number.to_string());
        }
    }
    query.append_pair("continuationToken", token);
    drop(query);
    Ok(url)
}
