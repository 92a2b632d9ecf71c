"""A reader of many streams in a process of its own: ``python -m tests.bench.reader``, its orders as JSON on stdin.

``{"streams": [{"url", "headers", "send"}], "frames": N, "acknowledge": bool, "certificate": FILE, "server_name"}``: it
connects to all, sends ``send`` on each, and reads until each has shown N numbered texts (``#000000`` ...) in order.
It prints one JSON line:
``{"seen": [..], "wrong": count, "seconds": s}``.
"""

import asyncio
import json
import re
import ssl
import sys
import time
from typing import Any

import aiohttp

_NUMBER = re.compile(r"#(\d{6})")
_SEQ = re.compile(r'"seq":(\d+)')
EVERY = 8
LIMIT = 300.0


async def read(
    session: aiohttp.ClientSession, order: dict[str, Any], orders: dict[str, Any]
) -> tuple[int, int]:
    """How many numbered texts came, and how many of them out of order."""
    seen, wrong, frames, acknowledge = 0, 0, orders["frames"], orders["acknowledge"]
    async with session.ws_connect(
        order["url"], headers=order["headers"], max_msg_size=0, server_hostname=orders["server_name"]
    ) as socket:
        for text in order["send"]:
            await socket.send_str(text)
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.TEXT:
                break
            seq = _SEQ.search(message.data)
            if acknowledge and seq and int(seq[1]) % EVERY == 0:
                await socket.send_json(
                    {"type": "notification", "action": "agent.events.ack", "payload": {"seq": int(seq[1])}}
                )
            number = _NUMBER.search(message.data)
            if number is None:
                continue
            wrong += int(number[1]) != seen
            seen += 1
            if seen == frames:
                break
    return seen, wrong


async def main() -> None:
    orders = json.loads(sys.stdin.readline())
    began = time.monotonic()
    trusted = ssl.create_default_context(cafile=orders["certificate"])
    connector = aiohttp.TCPConnector(ssl=trusted, limit=0)
    async with aiohttp.ClientSession(connector=connector, trust_env=False) as session, asyncio.timeout(LIMIT):
        results = await asyncio.gather(*(read(session, order, orders) for order in orders["streams"]))
    seen, wrong = [each[0] for each in results], sum(each[1] for each in results)
    print(json.dumps({"seen": seen, "wrong": wrong, "seconds": time.monotonic() - began}))


if __name__ == "__main__":
    asyncio.run(main())
