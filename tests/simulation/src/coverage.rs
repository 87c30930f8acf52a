//! Counts of faults and of rare paths. A run in which one of them never happened has not tested it.

use std::fmt;

macro_rules! paths {
    ($($variant:ident = $text:literal,)+) => {
        /// Something that has to happen in an ordinary run.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "the text says it")]
        pub enum Path { $($variant),+ }

        impl Path {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// What it is.
            pub fn text(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }
    };
}

paths! {
    // Faults of the network.
    SocketCut = "socket cut",
    GatewayHalfOpen = "half-open socket: the gateway does not know",
    ClientHalfOpen = "half-open socket: the client does not know",
    StallUp = "stall towards the gateway",
    StallDown = "stall towards the client",
    SecondUpgrade = "second upgrade for the same session",
    AnswerLost = "HTTP answer lost",
    PartialWrite = "partial write",
    PartialWriteRewound = "partial write, rest rewound",
    WriteGivenUp = "write given up",
    // Faults of the gateway's process and its store.
    Crash = "crash",
    CrashLostRecords = "crash that lost records",
    CrashKeptUnsynced = "crash that kept records without a sync",
    CrashWithBatches = "crash with requests in flight",
    HistoryLost = "history lost, new log epoch",
    ShutDown = "shut-down with close 1001",
    StoreOutage = "store outage",
    ClockForward = "wall clock jumped forward",
    ClockBackward = "wall clock jumped backward",
    BootBehindLog = "boot with the wall clock behind the log",
    BootAhead = "boot with the wall clock far ahead of the log",
    AppendRefused = "definite append failure",
    AppendInDoubtNothing = "indefinite append: nothing landed",
    AppendInDoubtPrefix = "indefinite append: a part landed",
    AppendInDoubtAll = "indefinite append: all landed",
    AppendLate = "indefinite append landed late",
    AppendLateAfterOthers = "late append landed after later records of its shard",
    RetryRefused = "definite failure of an append that was in doubt",
    BootInDoubt = "boot record in doubt",
    ReadAgain = "records read again",
    RecordsWaited = "records waited while others were served",
    Twin = "twin passed over",
    // Marks.
    Marked = "sequence acks marked",
    MarkedWithRequest = "mark in the record of a request",
    MarksFailed = "record of marks failed",
    RestoredOverBound = "more than the bound held after a restart",
    // Checkpoints.
    CheckpointFailed = "write of checkpoints failed",
    CrashWithCheckpoint = "crash with checkpoints being written",
    MessageCopied = "message copied into a checkpoint",
    CopyDeleted = "copy of a message deleted",
    LogTrimmed = "log trimmed",
    Restored = "hub restored from a checkpoint",
    RestoredWithinRound = "chunk restored from a round that was not done",
    CopyRestored = "message restored from its copy",
    // Sessions.
    Opened = "session opened",
    OpenUnavailable = "open answered 503",
    Resumed = "session resumed",
    Takeover = "takeover of an attached session",
    TakeoverWithRequests = "takeover with requests of the old socket in flight",
    StaleRequests = "requests of an old socket",
    StaleClose = "end of an old socket",
    ResumeRefused = "resume refused: 1008",
    ResumeBadProof = "resume with a bad proof",
    ResumeOldEpoch = "resume with a token of another log epoch",
    ResumeUnavailable = "resume answered 503 by a live hub",
    ResumeNotLive = "resume answered 503 by a hub that boots",
    Redelivery = "redelivery",
    RequestResent = "request sent again",
    Success = "ack: success",
    Duplicate = "ack: duplicate",
    Mismatch = "ack: payload mismatch",
    Forbidden = "ack: forbidden",
    NotStored = "ack: could not be stored",
    NoRoom = "ack: too many groups",
    RepeatInRead = "ack id repeated within one read",
    SequenceJump = "jump of the sequence id",
    QuickAck = "quick sequence ack",
    TtlJudged = "message with a time-to-live delivered",
    TtlSkip = "message passed over after its time-to-live",
    NoEcho = "no echo asked for",
    WithoutAckId = "request without an ack id",
    ReadingStopped = "reading stopped at a bound",
    EndedByClient = "session ended: client closed",
    EndedByViolation = "session ended: protocol violation",
    EndedByOverflow = "session ended: outbox full",
    EndedByExpiry = "session ended: expired",
    EndedByShedding = "session ended: memory",
    Doomed = "doomed session: its end could not be appended",
    DroppedAsSlow = "closed with 1008: outbox full",
    RuleGranted = "permission granted",
    RuleRevoked = "permission revoked",
    Filtered = "message of the application through a filter",
    RequestRepeated = "request of the application repeated, not executed again",
    RefusalRepeated = "request of the application repeated, refused again",
    RequestForgotten = "request of the application refused: perhaps executed and forgotten",
    ClosedByApplication = "session closed by the application",
    AddedByApplication = "sessions put into a group by the application",
    RemovedByApplication = "sessions taken out of a group by the application",
    // Event handlers.
    EventSent = "event sent",
    EventCalled = "event handler called",
    EventCalledAgain = "event handler called again with an event",
    HandledWithNothing = "event handled: nothing to keep",
    HandledWithReply = "event handled: reply",
    HandledWithState = "event handled: state",
    HandledWithBoth = "event handled: reply and state",
    EventFailed = "event handler failed",
    HandlerBusy = "event handler busy",
    NoHandler = "no event handler",
    EventNotHandled = "ack: event not handled",
    AnswerForNobody = "answer of an event handler for a session that is over",
    CallLost = "crash with calls of event handlers under way",
    ClosedOnEventFailure = "closed with 1011: an event was not handled",
    BeginningTold = "beginning of a session told",
    EndTold = "end of a session told",
    EndToldAgain = "end of a session told again",
    EndUnconfirmed = "crash with ends that were not confirmed",
    // Raw clients.
    RawEvent = "frame of a raw client as an event",
    RawEventFailed = "raw client closed with 1011: an event was not handled",
    RawPublish = "frame of a raw client",
    RawForbidden = "raw client closed with 1008: it may not publish",
    RawNotStored = "raw client closed with 1011: a frame could not be stored",
    // The malicious client.
    FutureAck = "ack of a sequence id never given",
    OldAck = "ack of an old sequence id",
    PingFlood = "flood of pings",
    Garbage = "garbage, closed with 1007",
    WrongFrame = "binary frame, closed with 1003",
    StaleWrite = "writing to a socket after its session was taken over",
    // The end.
    Healed = "world healed and settled",
}

/// How often each happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coverage(Vec<u64>);

impl Default for Coverage {
    fn default() -> Self {
        Self(vec![0; Path::ALL.len()])
    }
}

impl Coverage {
    /// It happened once more.
    pub fn note(&mut self, path: Path) {
        self.0[path as usize] += 1;
    }

    /// How often it happened.
    pub fn count(&self, path: Path) -> u64 {
        self.0[path as usize]
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine += theirs;
        }
    }

    /// What never happened.
    pub fn missing(&self) -> Vec<&'static str> {
        Path::ALL.iter().filter(|path| self.count(**path) == 0).map(|path| path.text()).collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Path::ALL.iter().try_for_each(|path| writeln!(f, "{:60} {:>12}", path.text(), self.count(*path)))
    }
}
