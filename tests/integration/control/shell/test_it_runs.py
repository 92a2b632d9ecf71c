"""The program starts, answers whoever may ask, and ends when it is told to."""

import ssl

import aiohttp
import pytest
from tests.support.control import running_server


@pytest.mark.parametrize("tls", [False, True])
async def test_a_server_starts_gives_its_nonces_holder_a_credential_and_ends_on_sigterm(tls: bool) -> None:
    async with running_server(tls=tls) as server:
        context = ssl.create_default_context(cadata=server.certificate) if tls else True
        connector = aiohttp.TCPConnector(ssl=context)
        name = server.server_name or None
        async with aiohttp.ClientSession(server.url, connector=connector) as http:
            async with http.get("/health", server_hostname=name) as answer:
                assert answer.status == 200
                assert (await answer.json())["status"] == "ok"
            asked = {"nonce": server.nonce.reveal()}
            async with http.post("/auth/handshake", json=asked, server_hostname=name) as answer:
                token = (await answer.json())["token"]
            bearer = {"Authorization": f"Bearer {token}"}
            async with http.get("/api/v1/ownership/details", headers=bearer, server_hostname=name) as answer:
                assert (await answer.json())["home_dir"] == server.home_dir
        assert await server.stop() == 0
        assert server.url in server.stderr()
