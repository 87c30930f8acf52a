"""500 sends while the sockets of publisher and subscriber are being cut at random bytes.

The SDK's own retries are off, since they forget the caller's ack id; the test repeats under the same one, and the
independent checker judges.
"""

import asyncio
import os

import pytest

from support.clients import NO_RETRIES
from support.history import History, Recorder
from support.proxy import CUTS

SENDS = 500

# Concurrent senders on the one connection. The synchronous client is used from one thread.
LANES = {"sync": 1, "async": 5}

SEEDS = [int(os.environ["ONCEWIRE_SEED"])] if "ONCEWIRE_SEED" in os.environ else [1, 2]


@pytest.mark.parametrize("seed", SEEDS)
async def test_500_sends_under_random_cuts(gateway, proxies, create, kind, seed, tmp_path):
    """22 #6, #9; 22.1 #4, #22"""
    history = History(tmp_path)

    async def connect(offset):
        proxy = proxies.open(gateway)
        # The short wait is for acks that the synchronous client does not notice; a repetition costs nothing.
        client = create(proxy, ack_timeout=0.25 if kind == "sync" else 5.0, **NO_RETRIES)
        recorder = Recorder(history, client, "chat")
        await client.open()
        await recorder.join("g", 1)
        # Each recovery takes the asynchronous client up to a second, so that there are fewer of them than in JavaScript.
        schedule = {"bytes_min": 300, "bytes_max": 12_000, "connections_max": 12, "actions": CUTS}
        proxy.random(seed=seed * 1_000 + offset, **schedule)
        # The connection that is open already is no part of the schedule; the first one that is starts now.
        proxy.strike("cut_rst")
        return proxy, client, recorder

    publisher_proxy, publisher, publishing = await connect(1)
    subscriber_proxy, subscriber, subscribing = await connect(2)

    async def send_lane(lane):
        for number in range(lane, SENDS, LANES[kind]):
            await publishing.send("g", f"p{seed}-{number}", 1_000 + number, f"lane {lane}")

    await asyncio.gather(*(send_lane(lane) for lane in range(LANES[kind])))
    for client, recorder in ((publisher, publishing), (subscriber, subscribing)):
        await client.received("g", SENDS)
        # An ack read now shows that the session is attached and has nothing more to give.
        await recorder.send("elsewhere", f"end of {client.connection_id}", 9_000)
        assert client.count() == SENDS
        assert len(client.connections) == 1
        assert client.disconnections == 0
    history.quiesced(publisher, subscriber)
    judged = history.judge()
    assert judged["must_arrive"] == 2 * SENDS
    cuts = [proxy.report()["faults"] for proxy in (publisher_proxy, subscriber_proxy)]
    print(f"cuts: {cuts}, resends: {judged['resends']}, duplicates: {judged['acked_duplicate']}")
    assert min(cuts) >= 5, "too few cuts to mean anything"
