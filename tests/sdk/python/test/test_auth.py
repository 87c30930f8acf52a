"""Access tokens: who gets in, and that everybody else does not."""

import time

import jwt
import pytest
from azure.messaging.webpubsubclient.models import OpenClientError

from support.clients import client_url
from support.gateway import ACCESS_KEY


def url_with(gateway, key=ACCESS_KEY, **claims):
    """A client URL whose token has claims of the test's choosing."""
    audience = f"{gateway.endpoint}/client/hubs/chat"
    payload = {"aud": audience, "exp": int(time.time()) + 3600, **claims}
    return f"{audience.replace('http', 'ws')}?access_token={jwt.encode(payload, key, algorithm='HS256')}"


async def test_a_token_names_the_host_that_was_dialled_or_the_public_url(start_gateway, proxies, connect):
    """22 #20"""
    await connect(proxies.open(start_gateway()))
    proxy = proxies.open(start_gateway(toml='public_urls = ["https://chat.example.com"]\n'))
    url = client_url("https://chat.example.com")
    await connect(proxy, url=url.replace("wss://chat.example.com", proxy.endpoint.replace("http", "ws")))


async def test_bad_tokens_do_not_get_in(gateway, create):
    """22 #20: signature, audience and expiry, the last with 5 minutes of skew."""
    now = int(time.time())
    bad = [
        f"{gateway.endpoint.replace('http', 'ws')}/client/hubs/chat",
        url_with(gateway, key="another-access-key-0123456789abcdefgh"),
        url_with(gateway, aud=f"{gateway.endpoint}/client/hubs/other"),
        url_with(gateway, exp=now - 360),
    ]
    for url in bad:
        with pytest.raises(OpenClientError):
            await create(gateway, url=url).open()
    await create(gateway, url=url_with(gateway, exp=now - 240)).open()
