"""One official client under the control of another process, for tests with clients of several languages.

Arguments: which client, and its URL. Commands come as JSON objects, one in a line of the standard input:
`{"join": GROUP}` and `{"send": GROUP, "dataType": .., "data": ..}`, bytes in base64. Each is answered by
`{"done": true}` in the order of the commands. `{"connected": true}` comes first, each message as
`{"message": {"group": .., "dataType": .., "data": .., "sequenceId": ..}}`. The end of the input closes the client.
"""

import asyncio
import base64
import json
import sys

from .clients import CLIENTS

BYTES = ("binary", "protobuf")


def say(line):
    """Tells the other process."""
    # In one write: the synchronous client tells from several threads, and a line must stay whole.
    sys.stdout.write(f"{json.dumps(line)}\n")
    sys.stdout.flush()


def deliver(kind, event):
    """Reports messages, and no other events."""
    if kind == "message":
        data = base64.b64encode(bytes(event.data)).decode() if event.data_type in BYTES else event.data
        message = {"group": event.group, "dataType": event.data_type, "data": data}
        say({"message": {**message, "sequenceId": event.sequence_id}})


async def main():
    """Runs until the end of the input."""
    kind, url = sys.argv[1:]
    client = CLIENTS[kind](lambda: url)
    client.on_event = deliver
    await client.open()
    say({"connected": True})
    while line := await asyncio.to_thread(sys.stdin.readline):
        command = json.loads(line)
        if "join" in command:
            await client.join(command["join"])
        else:
            data, data_type = command["data"], command["dataType"]
            content = memoryview(base64.b64decode(data)) if data_type in BYTES else data
            await client.send_data(command["send"], content, data_type)
        say({"done": True})
    await client.close()


asyncio.run(main())
