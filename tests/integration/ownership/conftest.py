"""Servers to be a client of: agentctl's double, and Tenure's own program, plain and with TLS."""

from collections.abc import AsyncIterator

import pytest
from tests.integration.ownership.site import Site, agentctl, tenure

KINDS = {"agentctl": agentctl, "tenure": tenure, "tenure-tls": lambda: tenure(tls=True)}


@pytest.fixture(params=list(KINDS))
async def site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    """Each kind of server in turn, fresh."""
    async with KINDS[request.param]() as made:
        yield made
