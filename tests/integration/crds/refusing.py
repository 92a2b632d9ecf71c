"""Asking a real API server for what it must refuse."""

import pytest
from tests.support.agent_manifests import Manifest
from tests.support.api import AdminClient, ApiError


async def refusal(api: AdminClient, place: str, body: Manifest) -> ApiError:
    """What the server says to it; the test fails when it says nothing."""
    with pytest.raises(ApiError) as refused:
        await api.create(place, body, dryRun="All", fieldValidation="Strict")
    return refused.value
