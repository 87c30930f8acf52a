"""Every method of the official server SDK, synchronous and asynchronous, with official clients connected."""

import io

import pytest
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError, ResourceNotFoundError
from azure.core.rest import HttpRequest

from support.clients import until
from support.service import SERVICES, Service

# Names that SDK and gateway have to encode and decode alike.
NAMES = ["a b", "a/b", "a+b", "a%2Fb", "é", "!*'()", "?", "#"]


@pytest.fixture(params=list(SERVICES))
async def open_service(request):
    """Opens service clients, which are closed after the test."""
    services = []

    def open_one(via, **options):
        services.append(Service(request.param, via, **options))
        return services[-1]

    yield open_one
    for service in services:
        await service.close()


@pytest.fixture
async def service(open_service, gateway):
    """A service client of the gateway."""
    return open_service(gateway)


@pytest.fixture
def kind():
    """One kind of client is enough here."""
    return "async"


async def test_sends_reach_whom_they_are_for_in_every_form(gateway, service, connect):
    ann = await connect(gateway, token={"groups": ["g"], "user_id": "ann"})
    bob = await connect(gateway, token={"groups": ["g"], "user_id": "bob"})
    await service.call("send_to_group", "g", {"n": 1})
    await service.call("send_to_group", "g", "text", content_type="text/plain")
    # As bytes: of a text the asynchronous SDK sends as many bytes as it has characters, which is too few here.
    await service.call("send_to_group", "g", "é".encode(), content_type="text/plain;charset=utf-8")
    await service.call("send_to_group", "g", "not bob", content_type="text/plain", excluded=[bob.connection_id])
    await service.call("send_to_group", "g", "only bob", content_type="text/plain", filter="userId eq 'bob'")
    await service.call("send_to_group", "g", io.BytesIO(b"bytes"), content_type="application/octet-stream")
    assert (await ann.received("g", 5))[:4] == [{"n": 1}, "text", "é", "not bob"]
    assert (await bob.received("g", 5))[:4] == [{"n": 1}, "text", "é", "only bob"]
    # The client tells of messages of groups alone; that these are taken is all that shows here.
    await service.call("send_to_all", "x", content_type="text/plain", params={"messageTtlSeconds": 5})
    await service.call("send_to_user", "ann", "x", content_type="text/plain", filter="true")
    await service.call("send_to_connection", ann.connection_id, "x", content_type="text/plain")
    await service.call("send_to_user", "nobody", "x")
    await service.call("send_to_connection", "nobody", "x")


async def test_existence_membership_and_lists(gateway, service, connect):
    client = await connect(gateway, token={"user_id": "ann"})
    connection = client.connection_id
    assert await service.call("connection_exists", connection)
    assert not await service.call("connection_exists", "nobody")
    assert await service.call("user_exists", "ann")
    assert not await service.call("user_exists", "nobody")
    for name in NAMES:
        for _ in range(2):
            await service.call("add_connection_to_group", name, connection)
        assert await service.call("group_exists", name), name
        for _ in range(2):
            await service.call("remove_connection_from_group", name, connection)
        assert not await service.call("group_exists", name), name
        await service.call("add_user_to_group", name, "ann")
        assert await service.call("group_exists", name), name
        await service.call("remove_user_from_group", name, "ann")
        assert not await service.call("group_exists", name), name
    await service.call("add_connection_to_group", "g", connection)
    await service.call("remove_connection_from_all_groups", connection)
    await service.call("add_connection_to_group", "h", connection)
    await service.call("remove_user_from_all_groups", "ann")
    assert not await service.call("group_exists", "g") and not await service.call("group_exists", "h")
    with pytest.raises(ResourceNotFoundError):
        await service.call("add_connection_to_group", "g", "nobody")
    with pytest.raises(ResourceNotFoundError):
        await service.call("add_user_to_group", "g", "nobody")
    others = [await connect(gateway, token={"groups": ["x y"]}) for _ in range(3)]
    await service.call("add_connection_to_group", "x y", connection)
    ids = sorted([connection, *(other.connection_id for other in others)])
    for options in [{}, {"maxpagesize": 2}, {"maxpagesize": 1, "top": 3}]:
        listed = await service.members("x y", **options)
        assert [row.connection_id for row in listed] == ids[: options.get("top", 4)], options
    assert await service.members("nobody") == []


async def test_one_request_id_for_several_calls_passes_over_none_of_them(gateway, service, connect):
    client = await connect(gateway)
    connection = client.connection_id
    traced = {"headers": {"x-ms-client-request-id": "trace-1"}}
    for operation, is_member in [("add_connection_to", True), ("remove_connection_from", False)] * 2:
        await service.call(f"{operation}_group", "g", connection, **traced)
        assert await service.call("group_exists", "g") == is_member
    for operation, is_allowed in [("revoke", False), ("grant", True)] * 2:
        rule = ("sendToGroup", connection)
        await service.call(f"{operation}_permission", *rule, target_name="h", **traced)
        assert await service.call("has_permission", *rule, target_name="h") == is_allowed


async def test_what_the_sdk_has_no_method_for(gateway, service, connect):
    client = await connect(gateway)
    for operation, is_member in [("addToGroups", True), ("removeFromGroups", False)]:
        body = {"groups": ["bulk"], "filter": f"connectionId eq '{client.connection_id}'"}
        url = f"/api/hubs/chat/:{operation}?api-version=2024-12-01"
        response = await service.call("send_request", HttpRequest("POST", url, json=body))
        assert response.status_code == 200
        assert await service.call("group_exists", "bulk") == is_member
    health = await service.call("send_request", HttpRequest("HEAD", "/api/health?api-version=2024-12-01"))
    assert health.status_code == 200
    url = "/api/hubs/chat/:generateToken?api-version=2024-12-01&userId=ann&minutesToExpire=5&clientType=Default"
    response = await service.call("send_request", HttpRequest("POST", url))
    token = response.json()["token"]
    signed = await connect(gateway, url=f"{gateway.endpoint.replace('http', 'ws')}/client/hubs/chat?access_token={token}")
    assert signed.connections[0].user_id == "ann"


async def test_permissions_are_granted_revoked_and_checked(gateway, service, connect):
    client = await connect(gateway, token={"roles": ["webpubsub.sendToGroup"]})

    async def may(group):
        return await service.call("has_permission", "sendToGroup", client.connection_id, target_name=group)

    assert await may("a/b")
    await service.call("revoke_permission", "sendToGroup", client.connection_id, target_name="a/b")
    assert not await may("a/b") and await may("other")
    await service.call("grant_permission", "sendToGroup", client.connection_id, target_name="a/b")
    assert await may("a/b")
    await service.call("revoke_permission", "joinLeaveGroup", "nobody", target_name="g")
    with pytest.raises(ResourceNotFoundError):
        await service.call("grant_permission", "joinLeaveGroup", "nobody", target_name="g")
    with pytest.raises(HttpResponseError) as refused:
        await service.call("grant_permission", "sendToGroup", client.connection_id)
    assert refused.value.status_code == 400


async def test_closes_close(gateway, service, connect):
    one, user, group, last = [
        await connect(gateway, token=token, auto_reconnect=False)
        for token in [{"user_id": "a"}, {"user_id": "b"}, {"groups": ["g"]}, {}]
    ]
    for client, close in [
        (one, ("close_connection", one.connection_id)),
        (user, ("close_user_connections", "b")),
        (group, ("close_group_connections", "g")),
        (last, ("close_all_connections",)),
    ]:
        assert await service.call("connection_exists", client.connection_id)
        await service.call(*close, reason="it is time")
        assert not await service.call("connection_exists", client.connection_id)
        await until("the end of the client", lambda client=client: client.disconnections)
    await service.call("close_connection", "nobody")
    await service.call("close_all_connections", excluded=["nobody"])


async def test_errors_are_told_as_errors(gateway, open_service):
    service = open_service(gateway)
    for options in [{"filter": "userId"}, {"params": {"messageTtlSeconds": 301}}]:
        with pytest.raises(HttpResponseError) as refused:
            await service.call("send_to_all", "x", **options)
        assert (refused.value.status_code, refused.value.error.code) == (400, "Error.BadRequest")
    stranger = open_service(gateway, key="another-access-key-0123456789abcdefgh")
    with pytest.raises(ClientAuthenticationError):
        await stranger.call("send_to_all", "x")
    with pytest.raises(ClientAuthenticationError):
        await stranger.call("user_exists", "u")
