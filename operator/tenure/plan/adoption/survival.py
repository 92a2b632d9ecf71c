"""Whether agents outlive their backend: what was asked for, and what this installation can do."""

from collections.abc import Mapping
from dataclasses import dataclass

from tenure.model.adoption import AgentSurvival, SurvivalCode
from tenure.model.records import SurvivalEffective


@dataclass(frozen=True, slots=True)
class Survival:
    """The flag, resolved. Unavailable is reported whatever is asked for, and behaves as disabled."""

    requested: AgentSurvival
    effective: SurvivalEffective
    code: SurvivalCode | None = None
    """Set when, and only when, it is unavailable."""
    server_possible: bool = True
    """False: not even a server pod is made, the resource is Stalled."""


def resolve(requested: AgentSurvival, *, windows: bool, durable_store: bool, secret_access: bool) -> Survival:
    """What the flag amounts to here. Of several codes the first is reported: those without which there is no server."""
    code = None
    if not durable_store:
        code = SurvivalCode.NO_DURABLE_STORE
    elif not secret_access:
        code = SurvivalCode.NO_SECRET_ACCESS
    elif windows:
        code = SurvivalCode.PLATFORM_WINDOWS
    if code is not None:
        possible = code is SurvivalCode.PLATFORM_WINDOWS
        return Survival(requested, SurvivalEffective.UNAVAILABLE, code, server_possible=possible)
    return Survival(requested, SurvivalEffective(requested.value))


def on_windows(pod_spec: Mapping[str, object]) -> bool:
    """Whether a pod with this spec (plain JSON) is meant for a Windows node, by ``os`` or by its node selector."""
    system, selector = pod_spec.get("os"), pod_spec.get("nodeSelector")
    by_os = isinstance(system, Mapping) and system.get("name") == "windows"
    return by_os or (isinstance(selector, Mapping) and selector.get("kubernetes.io/os") == "windows")


def survives(
    now: Survival, recorded: SurvivalEffective, adopted_by: str | None, incarnation: str | None
) -> bool:
    """Whether the server on record outlives the incarnation for which it is on record.

    ``recorded`` and ``adopted_by`` are the record's: what was effective when that incarnation began holds until it has
    ended, whatever the spec says by now. So agents of an incarnation with survival off end with it, even if it is on
    for the next; and where it is off for the next, they end, too.
    """
    if incarnation is None or adopted_by == incarnation:
        return recorded is SurvivalEffective.ENABLED
    return recorded is SurvivalEffective.ENABLED and now.effective is SurvivalEffective.ENABLED
