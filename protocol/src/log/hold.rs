//! Who has a session's socket, and who proposes records for it.

use super::{BootId, Offset};

/// A session's holder and speaker, as the log says. The holder has the session's socket, or waits for it, and sends. The
/// speaker alone proposes records for the session. Both are starts of a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// The holder.
    pub holder: BootId,
    /// Since which record it holds the session.
    pub attached: Offset,
    /// The speaker.
    pub speaker: BootId,
    /// Since which record it speaks.
    pub speaks_since: Offset,
}

impl Hold {
    /// A boot that is both from a record on.
    pub fn new(boot: BootId, since: Offset) -> Self {
        Self { holder: boot, attached: since, speaker: boot, speaks_since: since }
    }

    /// Whether a boot is both: only then does it decide anything about the session.
    pub fn is_all_of(&self, boot: BootId) -> bool {
        self.holder == boot && self.speaker == boot
    }
}
