//! The table of operations, and how a request finds its own.
//!
//! The raw path is divided at its slashes, and each segment then decoded once: an encoded slash is part of a name.

use std::borrow::Cow;

use axum::http::Method;
use oncewire_protocol::log::{Audience, Permission};
use oncewire_protocol::wire::{ConnectionId, GroupName, HubName, UserId};
use percent_encoding::percent_decode_str;

use super::error::RestError;

/// What an operation does. To whom is said by the names in its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Send,
    Close,
    Exists,
    Add,
    Remove,
    RemoveFromAll,
    AddSelected,
    RemoveSelected,
    Grant,
    Revoke,
    Check,
    List,
    GenerateToken,
}

/// All operations below a hub; a name in braces stands for any segment that is not empty.
const OPERATIONS: &[(Method, &str, Kind)] = &[
    (Method::POST, ":send", Kind::Send),
    (Method::POST, "groups/{group}/:send", Kind::Send),
    (Method::POST, "users/{user}/:send", Kind::Send),
    (Method::POST, "connections/{connection}/:send", Kind::Send),
    (Method::POST, ":closeConnections", Kind::Close),
    (Method::POST, "groups/{group}/:closeConnections", Kind::Close),
    (Method::POST, "users/{user}/:closeConnections", Kind::Close),
    (Method::DELETE, "connections/{connection}", Kind::Close),
    (Method::HEAD, "connections/{connection}", Kind::Exists),
    (Method::HEAD, "users/{user}", Kind::Exists),
    (Method::HEAD, "groups/{group}", Kind::Exists),
    (Method::PUT, "groups/{group}/connections/{connection}", Kind::Add),
    (Method::DELETE, "groups/{group}/connections/{connection}", Kind::Remove),
    (Method::PUT, "users/{user}/groups/{group}", Kind::Add),
    (Method::DELETE, "users/{user}/groups/{group}", Kind::Remove),
    (Method::DELETE, "users/{user}/groups", Kind::RemoveFromAll),
    (Method::DELETE, "connections/{connection}/groups", Kind::RemoveFromAll),
    (Method::POST, ":addToGroups", Kind::AddSelected),
    (Method::POST, ":removeFromGroups", Kind::RemoveSelected),
    (Method::PUT, "permissions/{permission}/connections/{connection}", Kind::Grant),
    (Method::DELETE, "permissions/{permission}/connections/{connection}", Kind::Revoke),
    (Method::HEAD, "permissions/{permission}/connections/{connection}", Kind::Check),
    (Method::GET, "groups/{group}/connections", Kind::List),
    (Method::POST, ":generateToken", Kind::GenerateToken),
];

/// Segments before those of an operation: `api`, `hubs` and the hub.
const SEGMENTS_BEFORE: usize = 3;

/// An operation whose names are not read yet.
#[derive(Debug)]
pub(super) struct Found<'a> {
    kind: Kind,
    hub: &'a str,
    names: Vec<Name<'a>>,
}

/// A segment that is a name.
#[derive(Debug)]
struct Name<'a> {
    /// What it names.
    of: &'static str,
    /// Its place behind the hub, from 0.
    at: usize,
    segment: &'a str,
}

/// An operation and the names in its path.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) kind: Kind,
    pub(super) hub: HubName,
    /// The hub as the application spells it.
    pub(super) spelled_hub: String,
    pub(super) group: Option<GroupName>,
    user_id: Option<UserId>,
    connection_id: Option<ConnectionId>,
    permission: Option<Permission>,
    /// Which segments of the path, counted from 0, name groups, users and connections.
    pub(super) names_at: Vec<usize>,
}

/// Finds the operation of a method and a raw path.
pub(super) fn find<'a>(method: &Method, path: &'a str) -> Result<Found<'a>, RestError> {
    let mut segments: Vec<&str> = path.split('/').skip(1).collect();
    if segments.last() == Some(&"") {
        segments.pop();
    }
    let ([api, hubs, hub, rest @ ..], false) = (&*segments, segments.contains(&"")) else {
        return Err(RestError::no_such_operation());
    };
    if !is_word(api, "api") || !is_word(hubs, "hubs") {
        return Err(RestError::no_such_operation());
    }
    let mut allowed = Vec::new();
    for (known, pattern, kind) in OPERATIONS {
        let Some(names) = names(pattern, rest) else { continue };
        if known == method {
            return Ok(Found { kind: *kind, hub, names });
        }
        allowed.push(known.as_str());
    }
    if allowed.is_empty() {
        return Err(RestError::no_such_operation());
    }
    Err(RestError::method_not_allowed(&allowed.join(", ")))
}

/// The segments that a pattern's names stand for; none if the path is another one.
fn names<'a>(pattern: &'static str, path: &[&'a str]) -> Option<Vec<Name<'a>>> {
    let mut names = Vec::new();
    let mut path = path.iter();
    for (at, expected) in pattern.split('/').enumerate() {
        let segment = path.next()?;
        match expected.strip_prefix('{') {
            Some(name) => names.push(Name { of: name.trim_end_matches('}'), at, segment }),
            None if is_word(segment, expected) => {}
            None => return None,
        }
    }
    path.next().is_none().then_some(names)
}

/// A fixed segment counts without regard to case, and encoded or not.
fn is_word(segment: &str, word: &str) -> bool {
    decoded(segment).is_ok_and(|segment| segment.eq_ignore_ascii_case(word))
}

fn decoded(segment: &str) -> Result<Cow<'_, str>, RestError> {
    let refused = |what| RestError::bad_request("Request", format!("A part of the path is not {what}."));
    let is_escape =
        |rest: &str| rest.as_bytes().get(..2).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit));
    if !segment.split('%').skip(1).all(is_escape) {
        return Err(refused("percent-encoded"));
    }
    percent_decode_str(segment).decode_utf8().map_err(|_| refused("UTF-8"))
}

impl Found<'_> {
    /// Reads the names.
    pub(super) fn read(self) -> Result<Call, RestError> {
        let Self { kind, hub, names } = self;
        let spelled_hub = decoded(hub)?.into_owned();
        let hub = HubName::new(&spelled_hub);
        let mut call = Call {
            kind,
            hub: hub.map_err(|_| RestError::bad_request("Request", "Invalid hub name."))?,
            spelled_hub,
            group: None,
            user_id: None,
            connection_id: None,
            permission: None,
            names_at: Vec::new(),
        };
        for Name { of, at, segment } in names {
            let text = decoded(segment)?;
            let is_blank = text.trim().is_empty();
            if of != "permission" {
                call.names_at.push(SEGMENTS_BEFORE + at);
            }
            match of {
                "group" => call.group = Some(group_name("Request", &text)?),
                "user" if !is_blank => call.user_id = Some(UserId::new(&text)),
                "connection" if !is_blank => call.connection_id = Some(ConnectionId::new(&text)),
                "permission" => call.permission = Some(permission(&text)?),
                _ => return Err(RestError::bad_request("Request", format!("Invalid {of} id."))),
            }
        }
        Ok(call)
    }
}

/// A group's name, checked.
pub(super) fn group_name(target: &'static str, name: &str) -> Result<GroupName, RestError> {
    GroupName::new(name).map_err(|_| RestError::bad_request(target, "Invalid group name."))
}

fn permission(name: &str) -> Result<Permission, RestError> {
    match () {
        () if name.eq_ignore_ascii_case("sendToGroup") => Ok(Permission::SendToGroup),
        () if name.eq_ignore_ascii_case("joinLeaveGroup") => Ok(Permission::JoinLeaveGroup),
        () => Err(RestError::bad_request("Request", "Invalid permission.")),
    }
}

impl Call {
    /// The sessions that the path names: a connection or a user before a group.
    pub(super) fn audience(&self) -> Audience {
        match (&self.connection_id, &self.user_id, &self.group) {
            (Some(id), _, _) => Audience::Connection(id.clone()),
            (None, Some(user_id), _) => Audience::User(user_id.clone()),
            (None, None, Some(group)) => Audience::Group(group.clone()),
            (None, None, None) => Audience::All,
        }
    }

    /// The group in the path. Each operation that asks for it has one.
    pub(super) fn group(&self) -> Result<GroupName, RestError> {
        self.group.clone().ok_or_else(RestError::no_such_operation)
    }

    /// The connection in the path. Each operation that asks for it has one.
    pub(super) fn connection_id(&self) -> Result<ConnectionId, RestError> {
        self.connection_id.clone().ok_or_else(RestError::no_such_operation)
    }

    /// The permission in the path. Each operation that asks for it has one.
    pub(super) fn permission(&self) -> Result<Permission, RestError> {
        self.permission.ok_or_else(RestError::no_such_operation)
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::*;

    fn read(method: Method, path: &str) -> Result<Call, StatusCode> {
        find(&method, path).and_then(Found::read).map_err(|error| error.status)
    }

    #[test]
    fn names_are_divided_before_they_are_decoded() {
        let call = read(Method::POST, "/api/hubs/Chat/users/a%2Fb%252F+%C3%A9!*'()/:send").unwrap();
        assert_eq!(call.audience(), Audience::User(UserId::new("a/b%2F+é!*'()")));
        assert_eq!((call.hub.as_str(), &*call.spelled_hub), ("chat", "Chat"));
        let call = read(Method::DELETE, "/API/Hubs/chat/Connections/%2E%2E/").unwrap();
        assert_eq!(
            (call.kind, call.audience()),
            (Kind::Close, Audience::Connection(ConnectionId::new("..")))
        );
    }

    #[test]
    fn every_operation_is_found_with_its_method_alone() {
        for (method, pattern, kind) in OPERATIONS {
            let path = pattern.replace("{permission}", "sendToGroup").replace(['{', '}'], "");
            let path = format!("/api/hubs/chat/{path}");
            assert_eq!(read(method.clone(), &path).unwrap().kind, *kind, "{path}");
            assert_eq!(read(Method::PATCH, &path).unwrap_err(), StatusCode::METHOD_NOT_ALLOWED, "{path}");
            let longer = format!("{path}/more/and/more");
            assert_eq!(read(method.clone(), &longer).unwrap_err(), StatusCode::NOT_FOUND, "{longer}");
        }
    }

    #[test]
    fn what_is_wrong_in_a_path_has_its_status() {
        let long = format!("/api/hubs/chat/groups/{}/:send", "g".repeat(1025));
        for (path, status) in [
            ("/api/hubs/chat/connections//:send", 404),
            ("/api/hubs//:send", 404),
            ("/api/hubs/chat", 404),
            ("/api/other", 404),
            ("/api/hubs/9chat/:send", 400),
            ("/api/hubs/a-b/:send", 400),
            ("/api/hubs/chat/groups/%20/:send", 400),
            (&long, 400),
            ("/api/hubs/chat/users/%20/:send", 400),
            ("/api/hubs/chat/connections/%09/:send", 400),
            ("/api/hubs/chat/users/%FF/:send", 400),
            ("/api/hubs/chat/users/%zz/:send", 400),
            ("/api/hubs/chat/groups/a%2/:send", 400),
            ("/api/hubs/chat/connections/%/:send", 400),
            ("/api/hubs/ch%4/:send", 400),
            ("/api/hubs/chat/%zz", 404),
        ] {
            assert_eq!(read(Method::POST, path).unwrap_err().as_u16(), status, "{path}");
        }
        let path = "/api/hubs/chat/permissions/SENDtogroup/connections/c";
        assert_eq!(read(Method::PUT, path).unwrap().permission().unwrap(), Permission::SendToGroup);
        let path = "/api/hubs/chat/permissions/1/connections/c";
        assert_eq!(read(Method::PUT, path).unwrap_err(), StatusCode::BAD_REQUEST);
    }
}
