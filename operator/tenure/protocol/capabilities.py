"""Named capabilities, compared as sets and never as versions."""

from collections.abc import Iterable
from enum import StrEnum


class Capability(StrEnum):
    """What Tenure's own server can do beyond the plain routes."""

    AGENT_SURVIVAL = "agent-survival.v1"
    AGENT_DELIVERY = "agent-delivery.v1"
    DETACHED_CONTINUITY = "detached-continuity.v1"


ADVERTISED: frozenset[str] = frozenset(Capability)
"""What Tenure's server advertises."""

REQUIRED: frozenset[str] = frozenset({Capability.AGENT_SURVIVAL})
"""What the operator requires of a server that it adopts."""


def missing(advertised: Iterable[str], required: Iterable[str] = REQUIRED) -> frozenset[str]:
    """The required capabilities that are not advertised: compatible means none. More than is required, or in
    any order, is fine."""
    return frozenset(required) - frozenset(advertised)
