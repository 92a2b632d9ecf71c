"""Capabilities are compared as sets."""

import pytest

from tenure.protocol.capabilities import ADVERTISED, REQUIRED, Capability, missing


@pytest.mark.accept("O-004.2")
@pytest.mark.parametrize(
    ("advertised", "lacking"),
    [
        (["agent-survival.v1"], set()),
        (["x.v9", "agent-survival.v1", "agent-survival.v1", "agent-delivery.v1"], set()),
        ([], {"agent-survival.v1"}),
        (["agent-survival.v2"], {"agent-survival.v1"}),
        (["agent-survival"], {"agent-survival.v1"}),
        (["Agent-Survival.v1"], {"agent-survival.v1"}),
    ],
)
def test_what_is_required_must_be_among_what_is_advertised_and_more_does_no_harm(
    advertised: list[str], lacking: set[str]
) -> None:
    assert missing(advertised) == lacking


def test_all_that_is_required_has_to_be_there() -> None:
    assert missing(["a", "c"], ["a", "b", "c", "d"]) == {"b", "d"}


def test_our_own_server_meets_what_the_operator_requires() -> None:
    assert {Capability.AGENT_SURVIVAL} == REQUIRED
    assert {"agent-survival.v1", "agent-delivery.v1", "detached-continuity.v1"} == ADVERTISED
    assert not missing(ADVERTISED)
