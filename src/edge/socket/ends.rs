//! How sockets end, and what is told of it: one line, with who ended it, and one count.

use oncewire_protocol::driver::socket::{End, GatewayEnd, PeerClose};
use oncewire_protocol::wire::Close;

use super::Name;
use crate::telemetry::{Reason as _, SocketEnd};

/// Tells of an end as the reader has seen it; the gateway may have begun it before.
pub(super) fn tell(name: &Name, user: Option<&str>, end: End, begun: Option<GatewayEnd>) {
    let Told { end, closed_by, code, text } = told(end, begun.as_ref());
    name.counters.sockets_ended.count(end);
    let Name { hub, connection_id, peer, .. } = name;
    let (peer, reason) = (peer.map(tracing::field::display), end.text());
    tracing::debug!(%hub, %connection_id, user, peer, reason, closed_by, code, text, "socket ended");
}

#[derive(Debug, PartialEq, Eq)]
struct Told<'a> {
    end: SocketEnd,
    closed_by: &'static str,
    /// In the close frame of whoever began the end.
    code: Option<u16>,
    /// The gateway's; a client could say anything.
    text: Option<&'a str>,
}

fn told(end: End, begun: Option<&GatewayEnd>) -> Told<'_> {
    let without_frame = |end, closed_by| Told { end, closed_by, code: None, text: None };
    let with_frame = |end, Close { code, reason }: Close| {
        let (code, text) = (Some(code as u16), Some(reason));
        Told { end, closed_by: "gateway", code, text }
    };
    match (begun, end) {
        (Some(GatewayEnd::Closed(frame)), _) => {
            // A close frame is short: two bytes of header, two of code, the text.
            let code = frame.get(2..4).and_then(|code| code.try_into().ok()).map(u16::from_be_bytes);
            let text = frame.get(4..).and_then(|text| std::str::from_utf8(text).ok());
            Told { end: SocketEnd::ClosedByGateway, closed_by: "gateway", code, text }
        }
        (Some(GatewayEnd::Silent), _) => without_frame(SocketEnd::Silent, "gateway"),
        (Some(GatewayEnd::LetGo), _) => without_frame(SocketEnd::LetGo, "gateway"),
        (None, End::Violation(close)) => with_frame(SocketEnd::ProtocolViolation, close),
        (None, End::GivenUp) => with_frame(SocketEnd::HalfMessageGivenUp, Close::NO_ROOM_FOR_MESSAGE),
        (None, End::PeerClosed(PeerClose(code))) => {
            Told { end: SocketEnd::ClientClosed, closed_by: "client", code, text: None }
        }
        (None, End::Lost) => without_frame(SocketEnd::Lost, "network"),
    }
}

#[cfg(test)]
mod tests {
    use oncewire_protocol::driver::socket::frames;

    use super::*;

    #[test]
    fn whoever_began_the_end_is_told_with_what_it_said() {
        let by_gateway = GatewayEnd::Closed(frames::close(&Close::OUTBOX_FULL));
        for end in [End::PeerClosed(PeerClose(Some(1008))), End::Lost] {
            let told = told(end, Some(&by_gateway));
            let (code, text) = (Some(1008), Some(Close::OUTBOX_FULL.reason));
            let expected = Told { end: SocketEnd::ClosedByGateway, closed_by: "gateway", code, text };
            assert_eq!(told, expected, "{end:?}");
        }
        let by_client = told(End::PeerClosed(PeerClose(Some(4001))), None);
        assert_eq!(
            (by_client.end, by_client.closed_by, by_client.code),
            (SocketEnd::ClientClosed, "client", Some(4001))
        );
        assert_eq!(told(End::Lost, None).closed_by, "network");
        assert_eq!(told(End::Lost, Some(&GatewayEnd::Silent)).end, SocketEnd::Silent);
        assert_eq!(told(End::Lost, Some(&GatewayEnd::LetGo)).end, SocketEnd::LetGo);
        let violation = told(End::Violation(Close::BROKEN_FRAMING), None);
        assert_eq!((violation.end, violation.code), (SocketEnd::ProtocolViolation, Some(1002)));
        let given_up = told(End::GivenUp, None);
        assert_eq!((given_up.end, given_up.code), (SocketEnd::HalfMessageGivenUp, Some(1013)));
        let goodbye = GatewayEnd::Closed(frames::close(&Close::NORMAL));
        assert_eq!(told(End::Lost, Some(&goodbye)).code, Some(1000));
    }
}
