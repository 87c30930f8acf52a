"""Many messages to one client, which acknowledges once a second as the official client does: nothing is closed and
nothing is missing, as long as the publisher is not further ahead of the subscriber's callback than the outbox allows."""

import asyncio

from support.clients import until

MESSAGES = 30_000
AHEAD = 5_000


async def test_30000_messages_to_one_client(gateway, proxy, connect):
    """22 #5"""
    publisher = await connect(gateway, of_kind="async")
    subscriber = await connect(proxy, token={"groups": ["g"]})
    sends = []
    for number in range(MESSAGES):
        if number - subscriber.count() >= AHEAD:
            await until("the subscriber", lambda number=number: number - subscriber.count() < AHEAD)
        sends.append(asyncio.ensure_future(publisher.send("g", f"{number}")))
        if number % 100 == 0:
            # Lets the clients' tasks run.
            await asyncio.sleep(0)
    await asyncio.gather(*sends)
    await until("all messages", lambda: subscriber.count() >= MESSAGES)
    assert subscriber.texts("g") == [f"{number}" for number in range(MESSAGES)]
    assert len(subscriber.connections) == 1
    assert subscriber.disconnections == 0
    assert proxy.report()["accepted"] == 1, "the subscriber's first socket must have lasted"
