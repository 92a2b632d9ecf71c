"""A request on a stream that a server answers with an error: an agent has refused it, or there is none that could."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tenure.backend.errors import BackendError, Final, FinalError, Retry, RetryableError
from tenure.backend.following import Follower
from tenure.backend.refusals import of_control
from tenure.ownership.errors import Declined


@pytest.mark.parametrize("code", ["stopping", "stopped"])
def test_a_prompt_to_an_instance_that_is_being_stopped_has_met_the_end_of_the_session(code: str) -> None:
    found = of_control(Declined(code))
    assert isinstance(found, FinalError)
    assert found.reason is Final.SESSION_ENDED


@pytest.mark.parametrize("code", ["exited", "agent_error", "turn_in_progress"])
def test_what_an_agent_refuses_is_the_agents(code: str) -> None:
    found = of_control(Declined(code))
    assert isinstance(found, FinalError)
    assert found.reason is Final.AGENT_FAILED


class Stream:
    def __init__(self, code: str) -> None:
        self._code = code

    async def send(self, *request: Any, **options: Any) -> Any:
        raise Declined(self._code)


async def refused(code: str) -> BackendError | None:
    """Why a launch whose agent is asked to say hello comes to nothing."""
    follower: Any = object.__new__(Follower)
    follower.provider_session_id, follower.refused, follower._former = "", None, ""
    follower._progress = asyncio.Event()
    assert not await follower._prepared(Stream(code), SimpleNamespace(provider_session_id=""))
    found: BackendError | None = follower.refused
    return found


@pytest.mark.parametrize("code", ["stopping", "stopped"])
async def test_a_launch_into_a_server_that_ends_may_be_tried_again(code: str) -> None:
    found = await refused(code)
    assert isinstance(found, RetryableError)
    assert found.reason is Retry.SHUTTING_DOWN


async def test_a_launch_whose_agent_refuses_is_not() -> None:
    found = await refused("auth_required")
    assert isinstance(found, FinalError)
    assert found.reason is Final.AGENT_FAILED
