//! Histories as short scripts, so that a case reads like a dialogue. One command per line or between semicolons:
//!
//! ```text
//! open C [hub=H] [plain] [frames] [unordered] [in=G]     drop C    resume C    close C [server|client]
//! join C G [ID]    leave C G [ID]    pub C G M [ID] [noecho] [ttl=S] [lane=L] [at=MS]
//! event C M [ID]    call C M CE-ID [state=S]    done C M [reply=M] [state=S]    fail C M    told C NAME CE-ID [state=S]
//! ok C ID    dup C ID    err C ID NAME [definite]
//! got C G M [#N]    frame C G M [#N]    (without #N: the next sequence id of that connection; #none: without one)
//! sack C N    quiesced [at=MS] [C...]    signal N    await N    @RECORDER (the lines that follow are its)
//! ```

use std::collections::HashMap;

use oncewire_checker::{
    Acked, Called, Closed, ClosedBy, Event, Handled, History, Membership, Message, Notified, Opened, Publish,
    Quiesced, RecorderId, SequenceAck, Signal, Socket, UserEvent,
};

pub fn history(script: &str) -> History {
    let mut history = History::new();
    let mut recorders: HashMap<String, RecorderId> = HashMap::new();
    let mut ids = Ids::default();
    let mut recorder = history.recorder("script");
    for line in script.split(['\n', ';']).map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(name) = line.strip_prefix('@') {
            recorder = *recorders.entry(name.to_string()).or_insert_with(|| history.recorder(name));
        } else {
            history.push(recorder, event(line, &mut ids));
        }
    }
    history
}

/// What each connection's next sequence id is; connections that aren't reliable have none.
#[derive(Default)]
struct Ids {
    plain: Vec<String>,
    last: HashMap<String, u64>,
}

struct Words<'a> {
    line: &'a str,
    names: Vec<&'a str>,
    options: Vec<&'a str>,
}

const OPTIONS: [&str; 9] =
    ["plain", "frames", "unordered", "noecho", "definite", "indefinite", "server", "client", "#none"];

impl<'a> Words<'a> {
    fn new(line: &'a str) -> Self {
        let is_option = |w: &&str| OPTIONS.contains(w) || w.contains('=') || w.starts_with('#');
        let (options, names) = line.split_whitespace().partition(is_option);
        Self { line, names, options }
    }

    fn name(&self, index: usize) -> String {
        self.names.get(index).unwrap_or_else(|| panic!("`{}` lacks a word", self.line)).to_string()
    }

    fn number(&self, index: usize) -> Option<u64> {
        self.names.get(index).map(|word| word.parse().unwrap_or_else(|_| panic!("`{}`: `{word}`", self.line)))
    }

    fn has(&self, option: &str) -> bool {
        self.options.contains(&option)
    }

    fn value(&self, key: &str) -> Option<&'a str> {
        self.options.iter().find_map(|option| option.strip_prefix(key)?.strip_prefix('='))
    }

    fn value_number(&self, key: &str) -> Option<u64> {
        self.value(key).map(|value| value.parse().unwrap_or_else(|_| panic!("`{}`", self.line)))
    }
}

fn event(line: &str, ids: &mut Ids) -> Event {
    let words = Words::new(line);
    let command = words.name(0);
    let connection = || words.name(1);
    let membership =
        || Membership { connection: connection(), group: words.name(2), ack_id: words.number(3) };
    let acked = |success: bool, error: Option<String>| {
        let definite = match (words.has("definite"), words.has("indefinite")) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        };
        let ack_id = words.number(2).unwrap_or_else(|| panic!("`{line}` lacks an ack id"));
        Event::Acked(Acked { connection: connection(), ack_id, success, error, definite })
    };
    match command.as_str() {
        "open" => {
            if words.has("plain") {
                ids.plain.push(connection());
            }
            Event::Opened(Opened {
                connection: connection(),
                hub: words.value("hub").unwrap_or("chat").to_string(),
                reliable: !words.has("plain"),
                groups: words.value("in").into_iter().map(str::to_string).collect(),
                observes_sockets: words.has("frames"),
                unordered_callbacks: words.has("unordered"),
            })
        }
        "drop" => Event::Dropped(Socket { connection: connection() }),
        "resume" => Event::Resumed(Socket { connection: connection() }),
        "close" => Event::Closed(Closed {
            connection: connection(),
            code: None,
            reason: None,
            by: match (words.has("server"), words.has("client")) {
                (true, _) => Some(ClosedBy::Server),
                (_, true) => Some(ClosedBy::Client),
                _ => None,
            },
        }),
        "join" => Event::Join(membership()),
        "leave" => Event::Leave(membership()),
        "pub" => Event::Publish(Publish {
            connection: connection(),
            group: words.name(2),
            message: words.name(3),
            ack_id: words.number(4),
            no_echo: words.has("noecho"),
            ttl_seconds: words.value_number("ttl").map(|ttl| u32::try_from(ttl).expect("a small number")),
            lane: words.value("lane").map(str::to_string),
            at_ms: words.value_number("at"),
        }),
        "event" => Event::UserEvent(UserEvent {
            connection: connection(),
            message: words.name(2),
            ack_id: words.number(3),
        }),
        "call" => Event::Called(Called {
            connection: connection(),
            message: words.name(2),
            id: words.name(3),
            state: words.value("state").map(str::to_string),
        }),
        "done" | "fail" => Event::Handled(Handled {
            connection: connection(),
            message: words.name(2),
            success: command == "done",
            reply: words.value("reply").map(str::to_string),
            state: words.value("state").map(str::to_string),
        }),
        "told" => Event::Notified(Notified {
            connection: connection(),
            name: words.name(2),
            id: words.name(3),
            state: words.value("state").map(str::to_string),
        }),
        "ok" => acked(true, None),
        "dup" => acked(false, Some("Duplicate".to_string())),
        "err" => acked(false, Some(words.name(3))),
        "got" | "frame" => {
            let message = Message {
                connection: connection(),
                group: words.name(2),
                message: words.name(3),
                sequence_id: ids.next(&words),
            };
            if command == "got" { Event::Delivered(message) } else { Event::Received(message) }
        }
        "sack" => {
            let sequence_id = words.number(2).unwrap_or_else(|| panic!("`{line}` lacks a sequence id"));
            Event::SequenceAck(SequenceAck { connection: connection(), sequence_id })
        }
        "quiesced" => {
            let connections: Vec<String> = words.names[1..].iter().map(|name| name.to_string()).collect();
            let connections = (!connections.is_empty()).then_some(connections);
            Event::Quiesced(Quiesced { connections, at_ms: words.value_number("at") })
        }
        "signal" => Event::Signal(Signal { name: words.name(1) }),
        "await" => Event::Awaited(Signal { name: words.name(1) }),
        _ => panic!("unknown command in `{line}`"),
    }
}

impl Ids {
    fn next(&mut self, words: &Words<'_>) -> Option<u64> {
        if words.has("#none") {
            return None;
        }
        if let Some(number) = words.options.iter().find_map(|option| option.strip_prefix('#')) {
            let id = number.parse().unwrap_or_else(|_| panic!("`{}`", words.line));
            self.last.insert(words.name(1), id);
            return Some(id);
        }
        if self.plain.contains(&words.name(1)) {
            return None;
        }
        let last = self.last.entry(words.name(1)).or_default();
        *last += 1;
        Some(*last)
    }
}
