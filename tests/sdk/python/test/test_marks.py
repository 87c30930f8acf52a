"""A restart does not bring back what a client has acknowledged: one that keeps up keeps its session over a kill of the
gateway, although many times what its outbox may hold has been through it."""

import asyncio

from support.clients import NO_RETRIES, until

# 400 messages a second, on a machine that can: the client acknowledges once a second, and not at once.
PER_TICK = 8
TICK_SECONDS = 0.02
BEFORE_THE_KILL = 2_400
MESSAGES = 2_800
# Twice this is still less than what comes before the kill.
BOUND = 1_000
AHEAD = 200


async def test_400_messages_a_second_for_seconds_and_a_kill_lose_nothing(start_gateway, connect):
    """Acknowledged publishes were lost, and the session with them."""
    gateway = start_gateway(toml=f"outbox_messages_max = {BOUND}\n", disk=True)
    publisher = await connect(gateway, of_kind="async", **NO_RETRIES)
    subscriber = await connect(gateway, token={"groups": ["g"]})
    sends = []

    async def publish_all():
        while len(sends) < MESSAGES:
            await until(
                "the subscriber", lambda: len(sends) - subscriber.count() < AHEAD or subscriber.disconnections
            )
            assert subscriber.disconnections == 0, "the session is lost"
            for _ in range(PER_TICK):
                number = len(sends)
                # Ack ids begin at 1.
                sends.append(asyncio.ensure_future(publisher.send_until_done("g", f"{number}", number + 1)))
            await asyncio.sleep(TICK_SECONDS)

    publishing = asyncio.ensure_future(publish_all())
    await until("messages before the kill", lambda: subscriber.count() >= BEFORE_THE_KILL)
    await asyncio.to_thread(gateway.kill)
    await asyncio.to_thread(gateway.launch)
    await publishing
    await asyncio.gather(*sends)
    await until("all messages", lambda: subscriber.count() >= len(sends) or subscriber.disconnections)
    assert sorted(map(int, subscriber.texts("g"))) == list(range(len(sends))), "each once"
    assert len(subscriber.connections) == 1
    assert subscriber.disconnections == 0
