//! What the bytes say: one byte for what happens, then one for each number. The shares are such that any bytes make a
//! run in which much gets through.

use arbitrary::{Arbitrary, Result, Unstructured};
use oncewire_protocol::filter::Filter;
use oncewire_protocol::hub::SocketEnd;
use oncewire_protocol::log::{Audience, Selection};
use oncewire_protocol::wire::{Close, ConnectionId, GroupName, Subprotocol, UserId};

/// The user of some sessions.
pub const USER: &str = "ada";
/// What the application selects by: the members of a group ...
pub const FILTER: &str = "'h' in groups";
/// ... namely this one.
pub const FILTERED_GROUP: &str = "h";

/// A whole run.
#[derive(Debug)]
pub struct Case {
    pub bounds: Bounds,
    /// Where the log is cut when it is folded again.
    pub cut: u8,
    pub steps: Vec<Step>,
}

/// Bounds, each of a few that matter.
#[derive(Debug)]
pub struct Bounds {
    pub messages: Few,
    pub bytes: Few,
    pub ack_window: Few,
    pub groups: Few,
    pub budget: Few,
    pub closes_on_event_failure: bool,
}

/// One of a few values.
#[derive(Debug, Clone, Copy)]
pub enum Few {
    Tiny,
    Small,
    Large,
}

impl Few {
    pub fn pick(self, values: [usize; 3]) -> usize {
        values[self as usize]
    }
}

/// One thing that happens. Numbers of sockets, sessions and groups are taken modulo how many there are.
#[derive(Debug)]
pub enum Step {
    Open {
        subprotocol: Subprotocol,
        groups: u8,
        roles_left_out: u8,
    },
    Resume {
        session: u8,
        other_subprotocol: bool,
    },
    Requests {
        socket: u8,
        asks: Vec<Ask>,
    },
    /// A writer pulls so many bytes and writes so many of the frames, or all.
    Read {
        socket: u8,
        budget: u16,
        written: Option<u8>,
    },
    Close {
        socket: u8,
        end: SocketEnd,
    },
    ChangeRule {
        session: u8,
        join_leave: bool,
        group: u8,
        allow: bool,
    },
    /// The application closes a session.
    CloseSession {
        session: u8,
    },
    /// An event handler answers one of the calls under way.
    Answer {
        call: u8,
        form: u8,
    },
    /// The application has heard of so many ends.
    Tell {
        ends: u8,
    },
    TakeDisconnected {
        takes: bool,
    },
    /// The application puts sessions into a group, or takes them out of it or of all.
    ChangeMembership {
        whose: Whose,
        session: u8,
        /// None is all, where they are taken out.
        group: Option<u8>,
        add: bool,
    },
    /// So many of the oldest appends that wait land.
    Land {
        appends: u8,
    },
    /// The oldest append that waits fails for certain.
    Refuse,
    /// The oldest append that waits fails perhaps: so many of its records land, now or later.
    Doubt {
        landing: u8,
        later: bool,
    },
    /// The oldest records that are to land later do.
    LandLate,
    /// So many records come back, and so many that have come back already come again.
    Apply {
        records: u8,
        again: u8,
    },
    /// All appends that wait land, and everything comes back.
    Settle,
    Wait {
        ms: u32,
    },
    /// The wall clock goes back, which the next boot finds.
    ClockBack {
        ms: u32,
    },
    /// The process is gone, and a new one folds what is in the log.
    Restart,
}

/// Whom the application selects.
#[derive(Debug, Clone, Copy)]
pub enum Whose {
    /// A session, by its name.
    Session,
    /// The sessions of a user.
    User,
    /// All but a session.
    Others,
    /// The members of a group but a session.
    OtherMembers,
    /// The members of a group, by a filter.
    Filtered,
}

impl Whose {
    /// The selection, given a session's name and a group.
    pub fn selection(self, session: &str, group: GroupName) -> Selection {
        let id = ConnectionId::new(session);
        let others = |audience, id| Selection { excluded: vec![id], ..Selection::whole(audience) };
        match self {
            Self::Session => Selection::whole(Audience::Connection(id)),
            Self::User => Selection::whole(Audience::User(UserId::new(USER))),
            Self::Others => others(Audience::All, id),
            Self::OtherMembers => others(Audience::Group(group), id),
            Self::Filtered => {
                Selection { filter: Filter::parse(FILTER).ok(), ..Selection::whole(Audience::All) }
            }
        }
    }
}

/// A request.
#[derive(Debug)]
pub enum Ask {
    Join {
        group: u8,
        ack_id: Option<u8>,
    },
    Leave {
        group: u8,
        ack_id: Option<u8>,
    },
    Publish {
        group: u8,
        ack_id: Option<u8>,
        padding: u8,
        times: u8,
        no_echo: bool,
        ttl_seconds: u8,
    },
    /// The publish or the event with this ack id that came last, once more.
    Again {
        ack_id: u8,
    },
    Event {
        ack_id: Option<u8>,
    },
    Invoke,
    Stream {
        ack_id: Option<u8>,
    },
    GroupState {
        ack_id: Option<u8>,
    },
    Ping,
    /// An ack of what was read last, so much less or more.
    SequenceAck {
        off: i8,
    },
    SequenceAckAny {
        id: u64,
    },
}

impl<'a> Arbitrary<'a> for Case {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let few = |byte: u8| match byte % 8 {
            0 => Few::Tiny,
            1 | 2 => Few::Small,
            _ => Few::Large,
        };
        let [messages, bytes, ack_window, groups, budget] = u.arbitrary()?;
        let bounds = Bounds {
            messages: few(messages),
            bytes: few(bytes),
            ack_window: few(ack_window),
            groups: few(groups),
            budget: few(budget),
            closes_on_event_failure: budget >= 192,
        };
        let cut = u.arbitrary()?;
        let mut steps = Vec::new();
        while !u.is_empty() {
            steps.push(u.arbitrary()?);
        }
        Ok(Self { bounds, cut, steps })
    }
}

impl<'a> Arbitrary<'a> for Step {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        Ok(match u8::arbitrary(u)? % 32 {
            0 | 1 => Self::Open {
                subprotocol: match u8::arbitrary(u)? % 8 {
                    0..4 => Subprotocol::JsonReliable,
                    4 => Subprotocol::ProtobufReliable,
                    5 => Subprotocol::Json,
                    6 => Subprotocol::Protobuf,
                    _ => Subprotocol::Raw,
                },
                groups: u.arbitrary()?,
                roles_left_out: u.arbitrary()?,
            },
            2 | 3 => Self::Resume { session: u.arbitrary()?, other_subprotocol: u8::arbitrary(u)? % 8 == 7 },
            4..=10 => {
                let socket = u.arbitrary()?;
                let asks = 1 + u8::arbitrary(u)? % 4;
                Self::Requests { socket, asks: (0..asks).map(|_| u.arbitrary()).collect::<Result<_>>()? }
            }
            11 | 12 => {
                let (socket, budget) = (u.arbitrary()?, 4 * u16::from(u8::arbitrary(u)?));
                Self::Read { socket, budget, written: Some(u8::arbitrary(u)? % 8) }
            }
            13 | 14 => Self::Read { socket: u.arbitrary()?, budget: u16::MAX, written: None },
            15 => {
                let socket = u.arbitrary()?;
                let end = match u8::arbitrary(u)? % 8 {
                    0 => SocketEnd::ClosedForGood,
                    1 => SocketEnd::Violation(Close::INVALID_JSON_MESSAGE),
                    2 => SocketEnd::Closed,
                    _ => SocketEnd::Lost,
                };
                Self::Close { socket, end }
            }
            16 => {
                let rule: u8 = u.arbitrary()?;
                if rule >= 128 {
                    let whose = match rule >> 3 & 7 {
                        0 | 1 => Whose::Session,
                        2 | 3 => Whose::User,
                        4 => Whose::Others,
                        5 => Whose::OtherMembers,
                        _ => Whose::Filtered,
                    };
                    let (add, group) = (rule % 2 == 1, rule >> 1 & 3);
                    let group = (add || group < 3).then_some(group);
                    return Ok(Self::ChangeMembership { whose, session: u.arbitrary()?, group, add });
                }
                let (join_leave, allow) = (rule % 2 == 1, rule % 4 > 1);
                Self::ChangeRule { session: u.arbitrary()?, join_leave, group: rule >> 2, allow }
            }
            17 | 18 => Self::Land { appends: 1 + u8::arbitrary(u)? % 4 },
            19 => Self::Refuse,
            20 | 21 => {
                let landing: u8 = u.arbitrary()?;
                Self::Doubt { landing: landing >> 1, later: landing % 2 == 1 }
            }
            22 => Self::LandLate,
            23 | 24 => Self::Apply { records: u8::arbitrary(u)? % 8, again: u8::arbitrary(u)? % 8 },
            25 | 26 => Self::Settle,
            27 => Self::Answer { call: u.arbitrary()?, form: u.arbitrary()? },
            28 => {
                let number: u8 = u.arbitrary()?;
                match number % 8 {
                    0..3 => Self::Answer { call: number >> 3, form: u.arbitrary()? },
                    3..5 => Self::Tell { ends: 1 + (number >> 5) },
                    5 | 6 => Self::TakeDisconnected { takes: number < 192 },
                    _ => Self::CloseSession { session: number >> 3 },
                }
            }
            29 => Self::Wait { ms: u32::from(u8::arbitrary(u)?).pow(2) },
            30 => Self::ClockBack { ms: u32::from(u8::arbitrary(u)?).pow(2) },
            _ => Self::Restart,
        })
    }
}

impl<'a> Arbitrary<'a> for Ask {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        Ok(match u8::arbitrary(u)? % 16 {
            0 => Self::Join { group: u.arbitrary()?, ack_id: ack_id(u)? },
            1 => Self::Leave { group: u.arbitrary()?, ack_id: ack_id(u)? },
            2..=6 => {
                let (group, ack_id, form): (_, _, u8) = (u.arbitrary()?, ack_id(u)?, u.arbitrary()?);
                let number: u8 = u.arbitrary()?;
                let only_if = |is_so: bool| if is_so { number } else { 0 };
                Self::Publish {
                    group,
                    ack_id,
                    padding: only_if(form % 4 == 1),
                    times: only_if(form % 16 == 2),
                    no_echo: form % 8 == 3,
                    ttl_seconds: only_if(form % 8 == 4),
                }
            }
            7 | 8 => Self::Again { ack_id: u8::arbitrary(u)? % ACK_IDS },
            9 => Self::Event { ack_id: ack_id(u)? },
            10 => match u8::arbitrary(u)? % 4 {
                0 => Self::Invoke,
                1 => Self::Stream { ack_id: ack_id(u)? },
                _ => Self::GroupState { ack_id: ack_id(u)? },
            },
            11 => Self::Ping,
            12..=14 => Self::SequenceAck { off: i8::arbitrary(u)?.min(2) },
            _ => Self::SequenceAckAny { id: u.arbitrary()? },
        })
    }
}

/// So few that they come again.
const ACK_IDS: u8 = 16;

fn ack_id(u: &mut Unstructured<'_>) -> Result<Option<u8>> {
    let id: u8 = u.arbitrary()?;
    Ok((!id.is_multiple_of(4)).then_some((id >> 2) % ACK_IDS))
}
