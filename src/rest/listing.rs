//! The connections in a group, in pages.

use std::sync::Arc;

use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use oncewire_protocol::session::MemoryBudget;
use oncewire_protocol::wire::ConnectionId;
use serde::Serialize;
use url::Url;

use super::body::Counted;
use super::error::RestError;
use super::{Request, Rest};
use crate::engine::Member;

/// Rows of a page.
const PAGE_ROWS_MAX: u32 = 200;
/// Names in a page, in bytes; one row is there however long its names are.
const PAGE_NAMES_BYTES_MAX: usize = 256 * 1024;

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
    let count = rows_that_fit(&members).min(rows as usize);
    let has_more = members.len() > count;
    members.truncate(count);
    let rest_of_top = top.map(|top| top.saturating_sub(count as u32));
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
    answer(&page, rest.engine.memory_budget())
}

/// How many members make a page.
fn rows_that_fit(members: &[Member]) -> usize {
    let mut bytes = 0;
    let fits = |member: &&Member| {
        let user_bytes = member.user_id.as_ref().map_or(0, |user_id| user_id.as_str().len());
        bytes += member.connection_id.as_str().len() + user_bytes;
        bytes <= PAGE_NAMES_BYTES_MAX
    };
    members.iter().take_while(fits).count().max(1)
}

/// A page on its way to a client that may read it slowly, or never: it counts until it is gone.
fn answer(page: &Page, budget: &Arc<MemoryBudget>) -> Result<Response, RestError> {
    struct Kept {
        json: Vec<u8>,
        _counted: Counted,
    }

    impl AsRef<[u8]> for Kept {
        fn as_ref(&self) -> &[u8] {
            &self.json
        }
    }

    let json = serde_json::to_vec(page).map_err(|_| RestError::unavailable())?;
    let mut counted = Counted::new(budget);
    counted.grow_to(json.capacity())?;
    let json = Bytes::from_owner(Kept { json, _counted: counted });
    Ok(([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], json).into_response())
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
