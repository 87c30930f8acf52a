//! The numbers that stored enumerations have.

use super::{EndReason, Permission, Refusal};
use crate::wire::{PayloadKind, Subprotocol};

/// Numbers of the stored enumerations: explicit, never reused, 0 never used.
macro_rules! stored_numbers {
    ($to:ident, $from:ident, $type:ident { $($variant:ident = $number:literal),+ $(,)? }) => {
        pub(super) fn $to(value: $type) -> u32 {
            match value { $($type::$variant => $number),+ }
        }

        pub(super) fn $from(number: u32) -> Option<$type> {
            match number { $($number => Some($type::$variant),)+ _ => None }
        }
    };
}

stored_numbers!(subprotocol_number, subprotocol_of, Subprotocol {
    Json = 1,
    JsonReliable = 2,
    Raw = 3,
    Protobuf = 4,
    ProtobufReliable = 5,
});
stored_numbers!(kind_number, kind_of, PayloadKind { Text = 1, Json = 2, Binary = 3, Any = 4 });
stored_numbers!(permission_number, permission_of, Permission { JoinLeaveGroup = 1, SendToGroup = 2 });
stored_numbers!(reason_number, reason_of, EndReason {
    ClientClosed = 1,
    ProtocolViolation = 2,
    OutboxFull = 3,
    Expired = 4,
    Shed = 5,
    ClosedByApplication = 6,
    Stopped = 7,
});
stored_numbers!(refusal_number, refusal_of, Refusal {
    UnknownConnection = 1,
    UnknownUser = 2,
    TooManyRules = 3,
    TooManyGroups = 4,
});
