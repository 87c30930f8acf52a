"""Groups as an application uses them, with both clients. No faults here.

The numbers in the docstrings are the points of the protocol checklist that a test covers.
"""

import pytest
from azure.messaging.webpubsubclient.models import SendMessageError, WebPubSubDataType, WebPubSubProtocolType

from support.clients import NO_RETRIES, until

PROTOCOLS = [WebPubSubProtocolType.JSON_RELIABLE, WebPubSubProtocolType.JSON]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_join_send_echo_no_echo_leave(gateway, connect, protocol):
    """22 #5, #13, #16; 22.1 #19"""
    first = await connect(gateway, protocol_type=protocol, token={"user_id": "ada"})
    second = await connect(gateway, protocol_type=protocol, token={"user_id": "ada"})
    assert first.connections[0].user_id == "ada"
    await first.join("lobby")
    await second.join("lobby")
    await first.send("lobby", "1 echoed")
    await first.received("lobby", 1)
    await first.send("lobby", "2 not echoed", no_echo=True)
    await second.received("lobby", 2)
    await first.send("lobby", "3 echoed")
    await second.received("lobby", 3)
    # The synchronous client's order is known by sequence ids alone, which the plain protocol has not.
    assert sorted(second.texts("lobby")) == ["1 echoed", "2 not echoed", "3 echoed"]
    assert sorted(await first.received("lobby", 2)) == ["1 echoed", "3 echoed"]
    assert {message.from_user_id for message in second.messages} == {"ada"}
    reliable = protocol == WebPubSubProtocolType.JSON_RELIABLE
    assert [message.sequence_id for message in second.messages] == ([1, 2, 3] if reliable else [None] * 3)

    await second.leave("lobby")
    await first.send("lobby", "after leaving")
    await second.join("lobby")
    await first.send("lobby", "after joining again")
    await second.received("lobby", 4)
    assert "after leaving" not in second.texts("lobby")


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_every_data_type_arrives_as_it_was_sent(gateway, connect, protocol):
    """22 #12, #15; 22.1 #18"""
    sender = await connect(gateway, protocol_type=protocol)
    receiver = await connect(gateway, protocol_type=protocol, token={"groups": ["types"]})
    octets = bytes(range(256))
    sent = [
        (WebPubSubDataType.TEXT, 'snow ☃, quoted " and \\'),
        (WebPubSubDataType.JSON, {"nested": [1, 2.5, None, True], "text": "☃"}),
        (WebPubSubDataType.BINARY, octets),
        (WebPubSubDataType.PROTOBUF, octets),
    ]
    for number, (data_type, data) in enumerate(sent, 1):
        content = memoryview(data) if isinstance(data, bytes) else data
        await sender.send_data("types", content, data_type)
        await until("the message", lambda number=number: receiver.count() >= number)
        seen = receiver.messages[-1] if receiver.messages[-1].sequence_id else receiver._messages[-1]
        data_seen = bytes(seen.data) if isinstance(seen.data, (bytes, memoryview)) else seen.data
        assert (seen.data_type, data_seen) == (data_type, data)


async def test_requests_without_permission_are_refused(gateway, connect):
    """22 #11"""
    member = await connect(gateway, token={"roles": ["webpubsub.sendToGroups.a.*"], "groups": ["g"]}, **NO_RETRIES)
    for request in (member.join("a.b"), member.leave("a.b"), member.send("a.b.c", "no"), member.send("g", "no")):
        with pytest.raises(SendMessageError) as refusal:
            await request
        assert refusal.value.error_detail.name == "Forbidden"
    await member.send("a.b", "yes")
    assert member.disconnections == 0


async def test_an_ack_id_is_executed_once(gateway, connect):
    """22 #6; 22.1 #1"""
    sender = await connect(gateway, **NO_RETRIES)
    receiver = await connect(gateway, token={"groups": ["g"]})
    for _ in range(3):
        await sender.send("g", "once", ack_id=900)
    await sender.send("g", "end")
    assert await receiver.received("g", 2) == ["once", "end"]


async def test_fire_and_forget_arrives(gateway, connect):
    """22 #11: nothing answers a request without an ack id."""
    sender = await connect(gateway)
    receiver = await connect(gateway, token={"groups": ["g"]})
    for number in range(100):
        await sender.send("g", f"{number}", ack=False)
    assert await receiver.received("g", 100) == [f"{number}" for number in range(100)]


async def test_an_event_without_a_handler_is_answered(gateway, connect):
    """22 #11"""
    client = await connect(gateway, **NO_RETRIES)
    with pytest.raises(SendMessageError) as refusal:
        await client.send_event("checkout", "7")
    assert refusal.value.error_detail.name == "InternalServerError"
    await client.join("g")
    assert client.disconnections == 0


async def test_close_ends_the_session(gateway, connect):
    """22 #9; 22.1 #11: the client closes with 1000 and does not come back."""
    client = await connect(gateway)
    await client.close()
    await until("stopped", lambda: client.stopped)
    assert client.disconnections == 1
    assert len(client.connections) == 1
