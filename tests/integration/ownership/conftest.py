"""Servers to be a client of: agentctl's double, and Tenure's own program."""

from collections.abc import AsyncIterator

import pytest
from tests.integration.ownership.site import Site, agentctl, tenure


@pytest.fixture(params=["agentctl", "tenure"])
async def site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    """Each kind of server in turn, fresh: the double speaks plain HTTP, Tenure's own has a pinned certificate."""
    async with agentctl() if request.param == "agentctl" else tenure(tls=True) as made:
        yield made
