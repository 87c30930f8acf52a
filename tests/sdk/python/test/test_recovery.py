"""A session outlives its socket: cuts, half-open connections, restarts of the gateway.

The numbers in the docstrings are the points of the protocol checklist that a test covers.
"""

import asyncio
import time

import jwt
import pytest
from azure.messaging.webpubsubclient.models import OpenClientError

from support.clients import NO_RETRIES, until
from support.gateway import ACCESS_KEY
from support.proxy import CUTS

IN_G = {"token": {"groups": ["g"]}}


def counting(first, last):
    """Texts of numbers."""
    return [f"{number}" for number in range(first, last + 1)]


@pytest.mark.parametrize("cut", CUTS)
async def test_what_was_published_meanwhile_arrives_once_and_in_order(gateway, proxy, connect, cut):
    """22 #3, #4, #9; 22.1 #5, #6, #12"""
    sender = await connect(gateway)
    client = await connect(proxy, **IN_G)
    for text in counting(1, 10):
        await sender.send("g", text)
    await client.received("g", 10)
    proxy.refuse()
    proxy.strike(cut)
    await asyncio.to_thread(proxy.wait, refused=1)
    for text in counting(11, 13):
        await sender.send("g", text)
    proxy.refuse(0)
    await client.received("g", 13)
    await sender.send("g", "14")
    assert await client.received("g", 14) == counting(1, 14)
    assert [message.sequence_id for message in client.messages] == list(range(1, 15))
    assert client.disconnections == 0
    assert len(client.connections) == 1


async def test_an_ack_id_that_was_executed_before_the_drop_is_a_duplicate_after_it(gateway, proxy, connect):
    """22 #6; 22.1 #4"""
    receiver = await connect(gateway, **IN_G)
    client = await connect(proxy, **NO_RETRIES)
    await client.send_until_done("g", "once", 5)
    proxy.strike("cut_rst")
    await asyncio.to_thread(proxy.wait, accepted=2)
    await client.send_until_done("g", "once", 5)
    await client.send_until_done("g", "end", 6)
    assert await receiver.received("g", 2) == ["once", "end"]
    assert len(client.connections) == 1


async def test_recovery_works_with_an_access_token_that_has_expired(gateway, proxy, create, connect):
    """22 #2; 22.1 #8"""
    audience = f"{proxy.endpoint}/client/hubs/chat"
    # Valid for some more seconds, thanks to the skew of 5 minutes.
    claims = {"aud": audience, "exp": int(time.time()) - 297, "webpubsub.group": ["g"]}
    url = f"{audience.replace('http', 'ws')}?access_token={jwt.encode(claims, ACCESS_KEY, algorithm='HS256')}"
    client = await connect(proxy, url=url)
    with pytest.raises(OpenClientError):
        while True:
            late = create(proxy, url=url)
            await late.open()
            await late.close()
    accepted = proxy.report()["accepted"]
    proxy.strike("cut_rst")
    await asyncio.to_thread(proxy.wait, accepted=accepted + 1)
    sender = await connect(gateway)
    await sender.send("g", "still here")
    assert await client.received("g", 1) == ["still here"]
    assert client.disconnections == 0
    assert len(client.connections) == 1


async def test_a_refused_recovery_leads_to_a_new_session(start_gateway, proxies, connect):
    """22 #2; 22.1 #10: 1008 tells the client to connect anew, and it joins its groups again."""
    gateway = start_gateway(toml="session_retention_seconds = 1\n")
    proxy = proxies.open(gateway)
    sender = await connect(gateway)
    client = await connect(proxy)
    await client.join("g")
    proxy.refuse()
    proxy.strike("cut_rst")
    # It tries once a second; by the fourth refusal the session is long over.
    await asyncio.to_thread(proxy.wait, refused=4)
    proxy.refuse(0)
    assert await client.connected(2) != client.connections[0].connection_id
    assert client.disconnections == 1

    # The SDK joins concurrently with the callback, so the first messages may come too early.
    number = 0
    while not client.texts("g"):
        number += 1
        await sender.send("g", f"{number}")
    assert client.rejoin_failures == []
    assert client.messages[0].sequence_id == 1


async def test_clients_come_back_to_a_restarted_gateway(gateway, connect):
    """SIGTERM closes with 1001, which ends no session; the memory store has lost it, so a new one begins."""
    client = await connect(gateway)
    await client.join("g")
    # In a thread: the client must be able to answer the close.
    await asyncio.to_thread(gateway.stop)
    assert client.disconnections == 0
    gateway.launch()
    assert await client.connected(2) != client.connections[0].connection_id
    assert client.disconnections == 1
    number = 0
    while not client.texts("g"):
        number += 1
        await client.send("g", f"{number}")
    await until("no failure to join again", lambda: not client.rejoin_failures)
