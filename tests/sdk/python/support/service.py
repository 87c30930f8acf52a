"""The official server SDK, synchronous and asynchronous, behind one face."""

import asyncio
from typing import Any

from azure.messaging.webpubsubservice import WebPubSubServiceClient
from azure.messaging.webpubsubservice.aio import WebPubSubServiceClient as AsyncWebPubSubServiceClient

from .gateway import ACCESS_KEY

SERVICES = {"sync": WebPubSubServiceClient, "async": AsyncWebPubSubServiceClient}


class Service:
    """Calls any method of the SDK by its name; what it does not know itself goes through its `send_request`."""

    def __init__(self, kind: str, via: Any, hub: str = "chat", key: str = ACCESS_KEY):
        connection_string = f"Endpoint={via.endpoint};AccessKey={key};Version=1.0;"
        self._is_async = kind == "async"
        self._sdk = SERVICES[kind].from_connection_string(connection_string, hub=hub)

    async def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """The method's result. The synchronous SDK blocks a thread of its own."""
        if self._is_async:
            return await getattr(self._sdk, method)(*arguments, **options)
        return await asyncio.to_thread(getattr(self._sdk, method), *arguments, **options)

    async def members(self, group: str, **options: Any) -> list[Any]:
        """All members of a group, page after page."""
        listed = self._sdk.list_connections(group=group, **options)
        if self._is_async:
            return [member async for member in listed]
        return await asyncio.to_thread(list, listed)

    async def close(self) -> None:
        """Ends the SDK's connections."""
        if self._is_async:
            await self._sdk.close()
        else:
            self._sdk.close()
