"""Fixtures: gateways, proxies and clients that end with their test."""

import asyncio

import pytest

from support.clients import CLIENTS, client_url
from support.gateway import Gateway
from support.proxy import ProxyProcess


@pytest.fixture
def start_gateway(tmp_path):
    """Starts gateways, which end after the test."""
    gateways = []

    def start(**options):
        folder = tmp_path / f"gateway-{len(gateways)}"
        folder.mkdir()
        gateways.append(Gateway(folder, **options))
        return gateways[-1]

    yield start
    for gateway in gateways:
        gateway.stop()


@pytest.fixture
def gateway(start_gateway):
    """A gateway with the default configuration."""
    return start_gateway()


@pytest.fixture
def proxies():
    """A process for proxies."""
    process = ProxyProcess()
    yield process
    process.close()


@pytest.fixture
def proxy(proxies, gateway):
    """A proxy before the gateway."""
    return proxies.open(gateway)


@pytest.fixture(params=list(CLIENTS))
def kind(request):
    """Which of the two clients a test is about."""
    return request.param


@pytest.fixture
async def create(kind):
    """Creates clients, which are closed after the test. `token` are claims, `url` replaces the URL made from them."""
    clients = []

    def create_client(via, token=None, url=None, of_kind=None, **options):
        provide = url if callable(url) else lambda: url or client_url(via.endpoint, **(token or {}))
        clients.append(CLIENTS[of_kind or kind](provide, **options))
        return clients[-1]

    yield create_client
    await asyncio.gather(*(client.close() for client in clients))


@pytest.fixture
async def connect(create):
    """Creates and opens clients."""

    async def connect_client(via, **options):
        client = create(via, **options)
        await client.open()
        return client

    return connect_client
