//! Who has a session's socket, and who proposes records for it.

use super::{BootId, Offset};

/// A session's holder and speaker, as the log says. The holder has the session's socket, or waits for it, and sends. The
/// speaker alone proposes records for the session. Both are starts of a gateway.
///
/// ```text
///                       attach(B)                      release(A), or forget(A)
///  holder A, speaker A -----------> holder B, speaker A ------------------------> holder B, speaker B
///           ^                                 |  attach(A): A goes on speaking
///           '---------------------------------'
///  forget(A) while A holds: no holder, and no speaker unless another one has yet to release.
///  attach(B) without a speaker: B is both at once.
/// ```
/// A log that only one gateway writes knows the upper left corner alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// The holder; none of an orphan, whose holder is gone.
    pub holder: Option<BootId>,
    /// Since which record it holds the session, or held it last.
    pub attached: Offset,
    /// The speaker; none when it is gone and nobody holds the session.
    pub speaker: Option<BootId>,
    /// Since which record it speaks, or nobody does.
    pub speaks_since: Offset,
}

impl Hold {
    /// A boot that is both from a record on.
    pub fn new(boot: BootId, since: Offset) -> Self {
        Self { holder: Some(boot), attached: since, speaker: Some(boot), speaks_since: since }
    }

    /// Whether a boot is both: only then does it propose anything for the session.
    pub fn is_all_of(&self, boot: BootId) -> bool {
        self.is_held_by(boot) && self.is_spoken_for_by(boot)
    }

    /// Whether a boot is the holder.
    pub fn is_held_by(&self, boot: BootId) -> bool {
        self.holder == Some(boot)
    }

    /// Whether a boot is the speaker.
    pub fn is_spoken_for_by(&self, boot: BootId) -> bool {
        self.speaker == Some(boot)
    }

    /// A boot holds the session from a record on, and speaks for it unless another one has yet to release it. Tells whether
    /// the holder is another one now.
    pub fn attach(&mut self, boot: BootId, at: Offset) -> bool {
        let has_changed = !self.is_held_by(boot);
        self.holder = Some(boot);
        self.attached = at;
        if self.speaker.is_none_or(|speaker| speaker == boot) {
            self.speaker = Some(boot);
            self.speaks_since = at;
        }
        has_changed
    }

    /// The speaker has nothing in flight and has read the attachment of another boot at `attached`: the holder speaks now.
    /// It is of no effect when the speaker has come to hold the session again since, or is another one. Tells whether it
    /// has an effect.
    pub fn release(&mut self, speaker: BootId, attached: Offset, at: Offset) -> bool {
        let counts = self.is_spoken_for_by(speaker) && attached > self.speaks_since;
        if counts {
            self.speaker = self.holder;
            self.speaks_since = at;
        }
        counts
    }

    /// A boot is gone: it holds nothing and speaks for nothing. Tells whether that changes something here.
    pub fn forget(&mut self, gone: BootId, at: Offset) -> bool {
        let (held, spoke) = (self.is_held_by(gone), self.is_spoken_for_by(gone));
        if held {
            self.holder = None;
        }
        if spoke {
            self.speaker = self.holder;
            self.speaks_since = at;
        }
        held || spoke
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: BootId = BootId(1);
    const B: BootId = BootId(2);

    #[test]
    fn the_next_holder_speaks_once_the_speaker_has_released() {
        let mut hold = Hold::new(A, Offset(0));
        assert!(hold.attach(B, Offset(1)));
        assert!(hold.is_held_by(B) && hold.is_spoken_for_by(A) && !hold.is_all_of(B));
        assert!(hold.release(A, Offset(1), Offset(2)));
        assert!(hold.is_all_of(B));
        assert!(!hold.release(A, Offset(1), Offset(3)), "a copy");
        assert_eq!(hold.speaks_since, Offset(2));
    }

    #[test]
    fn a_release_that_a_new_attachment_has_overtaken_is_of_no_effect() {
        let mut hold = Hold::new(A, Offset(0));
        hold.attach(B, Offset(1));
        assert!(hold.attach(A, Offset(2)));
        hold.attach(B, Offset(3));
        assert!(!hold.release(A, Offset(1), Offset(4)), "it answers the attachment before A's own");
        assert!(hold.is_spoken_for_by(A));
        assert!(hold.release(A, Offset(3), Offset(5)) && hold.is_all_of(B));
    }

    #[test]
    fn who_is_gone_holds_nothing_and_speaks_for_nothing() {
        let mut hold = Hold::new(A, Offset(0));
        assert!(hold.forget(A, Offset(1)));
        assert_eq!((hold.holder, hold.speaker), (None, None));
        assert!(hold.attach(B, Offset(2)) && hold.is_all_of(B), "nobody has to release");

        let mut moved = Hold::new(A, Offset(0));
        moved.attach(B, Offset(1));
        assert!(moved.forget(A, Offset(2)) && moved.is_all_of(B));

        let mut orphan = Hold::new(A, Offset(0));
        orphan.attach(B, Offset(1));
        assert!(orphan.forget(B, Offset(2)));
        assert_eq!((orphan.holder, orphan.speaker), (None, Some(A)), "A has yet to release");
        assert!(orphan.attach(A, Offset(3)) && orphan.is_all_of(A));
        assert!(!orphan.forget(B, Offset(4)));
    }
}
