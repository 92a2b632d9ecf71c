"""What a stream has not written when its connection is on its way out."""

import asyncio
import ssl

import pytest
from tests.support.impostors import Certificate

from tenure.control.routes import unwritten

pytestmark = pytest.mark.timeout(30)


async def test_nothing_is_left_of_an_encrypted_connection_that_was_closed_twice() -> None:
    ends: asyncio.Future[asyncio.WriteTransport] = asyncio.get_running_loop().create_future()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends.set_result(writer.transport)

    server = await asyncio.start_server(
        serve, "127.0.0.1", 0, ssl=Certificate("cs-1.tenure.invalid").context()
    )
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2], ssl=trusting)
    transport = await ends
    try:
        transport.write(b"x" * 10)
        assert unwritten(transport) >= 0
        transport.close()
        transport.close()
        assert unwritten(transport) == 0
    finally:
        writer.transport.abort()
        server.close()
