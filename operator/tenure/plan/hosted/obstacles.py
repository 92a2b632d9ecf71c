"""What stands in the way of a launch that is due: the first that applies, in a sentence."""

from dataclasses import dataclass

from tenure.model.reasons import ConditionReason
from tenure.plan.adoption.guards import Guards, LaunchVerdict, judge_launch
from tenure.plan.hosted.observation import Observation, Wanting

SERVER_AGAIN = 2.0
REFUSED_AGAIN = 2.0
STALLED_AGAIN = 15.0
"""Seconds until a launch is tried again. What has happened by then shows in rows, which wake nobody."""

_REFUSED = {
    LaunchVerdict.RECOVERY_IN_PROGRESS: (
        ConditionReason.RECOVERY_IN_PROGRESS,
        "recovery has not decided yet about the session's former agent",
    ),
    LaunchVerdict.IN_USE: (ConditionReason.SESSION_IN_USE, "the session has another agent"),
    LaunchVerdict.UNSTOPPED_AGENT: (
        ConditionReason.UNSTOPPED_AGENT,
        "the session has an agent that could not be stopped; nothing is launched beside it",
    ),
}


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a launch has to wait. ``refused``: it is told so by the rules for launches, and is counted."""

    wanting: Wanting
    again_in: float
    refused: LaunchVerdict | None = None


def obstacle(observation: Observation) -> Obstacle | None:
    """None: launch it."""
    for found in (_never(observation), _refused(observation), _not_yet(observation)):
        if found is not None:
            return found
    return None


def prompt_needs_no_backend(observation: Observation) -> Wanting | None:
    """A prompt in the resource, and a backend whose business prompts are."""
    session = observation.resource.spec.session
    if session is None or session.prompt is None or not observation.server.backend:
        return None
    text = (
        f"ControlServer {observation.server.name} has a backend, and prompts are that one's: "
        "a prompt is given only where there is none"
    )
    return Wanting(ConditionReason.PROMPT_NEEDS_NO_BACKEND, text, stalled=True)


def _never(observation: Observation) -> Obstacle | None:
    """What somebody has to put right."""
    server = observation.server
    if server.wanting is not None and server.wanting.stalled:
        return Obstacle(server.wanting, STALLED_AGAIN)
    wanting = prompt_needs_no_backend(observation) or _profile(observation)
    return None if wanting is None else Obstacle(wanting, STALLED_AGAIN)


def _profile(observation: Observation) -> Wanting | None:
    session, server = observation.resource.spec.session, observation.server
    assert session is not None
    if session.agent_profile in server.profiles:
        return None
    known = ", ".join(server.profiles[:20]) or "none"
    text = f"ControlServer {server.name} has no agent profile {session.agent_profile!r}; it has: {known}"
    return Wanting(ConditionReason.AGENT_PROFILE_NOT_FOUND, text, stalled=True)


def _refused(observation: Observation) -> Obstacle | None:
    server, row = observation.server, observation.row
    if observation.mine and row is not None and row.live:
        return None
    verdict = judge_launch(row, Guards(), server.recovered_by, server.incarnation)
    if verdict is LaunchVerdict.ADMITTED:
        return None
    reason, text = _REFUSED[verdict]
    # Another try is granted by nobody: it is worth somebody's look.
    final = not verdict.retryable
    again = STALLED_AGAIN if final else REFUSED_AGAIN
    return Obstacle(Wanting(reason, text, stalled=final), again, refused=verdict)


def _not_yet(observation: Observation) -> Obstacle | None:
    server, rejection = observation.server, observation.memory.rejection
    if server.wanting is not None:
        return Obstacle(server.wanting, SERVER_AGAIN)
    if rejection is None or rejection.generation != observation.resource.metadata.generation:
        return None
    left = rejection.retry_at - observation.clock
    return Obstacle(rejection.wanting, left) if left > 0 else None
