//! Deliberate faults of the core, switched on at run time in the one build that the simulation uses, where the checker
//! has to catch each of them. Without the feature `mutations` none of them can be switched on, and nothing is left of
//! the places that ask.

macro_rules! mutations {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// A deliberate fault, with the rule that it breaks.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Mutation { $($(#[doc = $doc])+ $name),+ }

        impl Mutation {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),+];
        }
    };
}

mutations! {
    /// R1: after a boot the unacknowledged messages have their predecessors' ids.
    IdsReboundAtBoot,
    /// R2: a sequence id is given twice.
    SequenceIdGivenTwice,
    /// R2: after a boot the ids start from 1.
    IdsRestartAtBoot,
    /// R3: a request is acknowledged before its record is in the log.
    AckBeforeAppend,
    /// R4: an ack id under which a request failed counts as executed.
    FailedAckIdRemembered,
    /// R4: another request under a known ack id is answered as a duplicate.
    MismatchAsDuplicate,
    /// R4: nothing is looked up in the ack window.
    WindowNotConsulted,
    /// R5: a full outbox drops its oldest message.
    OverflowDropsOldest,
    /// R6: what an old socket says counts.
    OldSocketCounts,
    /// R6: requests of an old socket are never taken off the count of pending ones.
    StaleRequestsCounted,
    /// R7: the next batch is appended while one is not settled.
    AppendWhileUnsettled,
    /// R7: a repeated ack id within a batch counts as a duplicate although its original failed.
    RepeatTakenForDuplicate,
    /// R7: answers come in reverse order.
    AcksOutOfOrder,
    /// R7: the ack window is lost with the socket.
    WindowLostAtAttach,
    /// R8: the second copy of a record takes effect.
    TwinApplied,
    /// R8: the second copy of a record takes effect when it comes late.
    LateTwinApplied,
    /// R8: an append in doubt counts as failed.
    DoubtTakenForFailure,
    /// R8: an append in doubt counts as failed once a retry was refused.
    DoubtForgottenAtRetry,
    /// R8: a request of the application that is repeated is executed again.
    RequestsNotConsulted,
    /// R8: after a restore nothing is known of the application's requests.
    RequestsNotRestored,
    /// R14: marks in the log free nothing.
    MarksNotRestored,
    /// R14: a mark frees one message more.
    MarkFreesOneMore,
    /// R14: what a restart has brought back counts against the bounds at once.
    RestoredCountsAgainstBound,
    /// R10: a resume is refused for good while the hub boots.
    RefusedWhileBooting,
    /// R10: a session expires although a socket is attached.
    ExpiresWhileAttached,
    /// R11: a record that is read again takes effect again.
    OffsetNotCompared,
    /// R11: some messages are not delivered.
    DeliverySkipped,
    /// R11: leaving a group has no effect.
    LeaveIgnored,
    /// R11: `noEcho` has no effect.
    NoEchoIgnored,
    /// R11: a message of the application reaches also those that its filter does not select.
    FilterIgnored,
    /// R11: closing sessions has no effect.
    CloseIgnored,
    /// R11: records right behind what a chunk covers do not reach it.
    CoversTooMuch,
    /// R11: the last record that a chunk covers reaches it again.
    CoversOneLess,
    /// R11: a publish whose publisher was restored with it reaches nobody.
    CoveredWindowConsulted,
    /// R11: a chunk that has changed is not written again.
    ChunkTakenForClean,
    /// R8: after a restore the second copy of a record takes effect.
    RepeatsNotRestored,
    /// R7: after a restore nothing is known of ack ids.
    WindowNotRestored,
    /// R2: after a restore the sequence id jumps elsewhere.
    JumpCountersNotRestored,
    /// R13: messages that sessions keep are not copied before the log forgets them.
    CopySkipped,
    /// R13: the log is trimmed up to the round that is done, not the one before.
    TrimmedByOneRoundMore,
    /// R3: an event is acknowledged before its handler has answered.
    AckBeforeHandled,
    /// R4: an event whose ack id was executed is handled again.
    EventHandledAgain,
    /// R7: requests that come behind an event do not wait for its handler.
    EventOvertaken,
    /// R11: what an event handler notes has no effect.
    HandlerStateIgnored,
    /// R11: what an event handler gives back does not reach the session.
    HandlerReplyIgnored,
    /// R11: after a restore nothing is known of ends that the application was not told.
    UntoldNotRestored,
    /// What a session's client has not acknowledged is lost with the socket.
    OutboxLostAtDetach,
    /// Transmission goes on where the last socket was.
    NoRewindAtAttach,
    /// A sequence ack frees one message too many.
    SequenceAckFreesOneMore,
    /// A publisher's ack overtakes its own message.
    AckBeforeOwnMessage,
    /// After a partial write a frame is left out.
    RewindForgetsFrame,
    /// After a partial write a frame is written again.
    RewindRepeatsFrame,
    /// A delivery wakes no writer.
    WriterNotWoken,
    /// A boot's time begins at the wall clock, also where that is behind the log.
    BootAtWallClock,
}

#[cfg(feature = "mutations")]
mod switch {
    use std::cell::Cell;

    use super::Mutation;

    thread_local! {
        static ON: Cell<Option<Mutation>> = const { Cell::new(None) };
    }

    /// Switches one fault on for this thread, and every other off.
    pub fn switch_on(mutation: Option<Mutation>) {
        ON.set(mutation);
    }

    pub(crate) fn is_on(mutation: Mutation) -> bool {
        ON.get() == Some(mutation)
    }
}

#[cfg(feature = "mutations")]
pub(crate) use switch::is_on;
#[cfg(feature = "mutations")]
pub use switch::switch_on;

/// Whether a fault is on: never, without the feature.
#[cfg(not(feature = "mutations"))]
#[inline(always)]
pub(crate) const fn is_on(_: Mutation) -> bool {
    false
}
