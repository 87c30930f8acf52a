"""The log refuses an append behind a running gateway, with the record not stored (definite) or perhaps stored
(indefinite, here: stored). A client that repeats under the same ack id recovers, and the subscriber sees one copy.

Needs a gateway built with the feature `fault-injection`.
"""

from support.clients import NO_RETRIES
from support.history import History, Recorder

SENDS = 12


async def test_the_application_repeats_under_the_same_ack_id(start_gateway, create, tmp_path):
    """22 #6, #7"""
    gateway = start_gateway(environment={"ONCEWIRE_TEST_FAIL_APPENDS": "definite:3,indefinite:7"})
    history = History(tmp_path)

    async def connect():
        client = create(gateway, **NO_RETRIES)
        recorder = Recorder(history, client, "chat")
        await client.open()
        await recorder.join("g", 1)
        return client, recorder

    publisher, publishing = await connect()
    subscriber, _ = await connect()
    expected = [f"m{number}" for number in range(SENDS)]
    errors = [await publishing.send("g", text, 100 + number) for number, text in enumerate(expected)]
    # The third publish was certainly not stored: its first try fails, the second one executes it.
    assert errors[2] == ["InternalServerError"]
    # The seventh append is the sixth publish. Who settles its outcome, gateway or client, is the gateway's choice.
    assert set(errors[5]) <= {"InternalServerError"}
    assert not any(names for number, names in enumerate(errors) if number not in (2, 5))
    for client in (publisher, subscriber):
        assert await client.received("g", SENDS) == expected
    history.quiesced(publisher, subscriber)
    assert history.judge()["must_arrive"] == 2 * SENDS
