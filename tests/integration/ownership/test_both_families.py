"""A server on every address, as one in a pod is, called over IPv6 and over IPv4."""

import pytest
from tests.integration.ownership.site import Site
from tests.integration.ownership.test_stream import attached, prompt, until_terminal
from tests.support.control import running_server

from tenure.operator.servers.secrets import url_of
from tenure.ownership.endpoint import Endpoint


@pytest.mark.parametrize("address", ["::1", "127.0.0.1"])
async def test_a_server_on_every_address_is_driven_over_either_family(address: str) -> None:
    async with running_server(tls=True, flags={"host": "::"}) as server:
        assert server.url == f"https://[::]:{server.port}"
        endpoint = Endpoint(url_of(address, server.port), server.server_name, server.certificate)
        site = Site(endpoint, server.identity, server.home_dir, server.nonce, server.workspaces, real=server)
        async with await site.owned() as client:
            stream = await attached(client, site)
            await prompt(stream, "say hello")
            assert (await until_terminal(stream))[-1].type == "complete"
            assert [each.id for each in await client.instances()] == ["i-1"]


async def test_a_server_on_an_address_of_ipv6_says_so_in_brackets_and_is_called_there() -> None:
    async with running_server(flags={"host": "::1"}) as server:
        assert server.url == f"http://[::1]:{server.port}"
        site = Site(Endpoint(server.url), server.identity, server.home_dir, server.nonce, server.workspaces)
        async with await site.owned() as client:
            assert not await client.instances()
