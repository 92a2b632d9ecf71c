"""What becomes of a server's pod, in words for people: how it ended, and what keeps it from starting.

Everything here was said by others: a node, the scheduler, the program in the pod. It comes out as one printable line,
cut, with secrets masked. Of a server that was in use nothing is quoted but words of a fixed set: agents of it can write
where its last words are.
"""

import json
import re
from dataclasses import dataclass
from enum import StrEnum

from tenure.model.redaction import one_line

_NAME = "tenure control-server: "
"""How the server begins what it says on standard error."""
_COLOURS = re.compile(r"\x1b\[[0-9;:]*[A-Za-z]")
"""Of a terminal: a word that follows one would not be known as the name of a secret."""
_DETAIL = 300
_WORDS = 300
_REASON = 64


class Ending(StrEnum):
    """Why a server says that it has ended (``tenure.control.lifetime``)."""

    UNOWNED = "unowned"
    ORDERED = "ordered"
    TERMINATED = "terminated"


@dataclass(frozen=True, slots=True)
class PodMention:
    """The pod of a server, as far as people are told of it."""

    name: str
    uid: str
    reason: str = ""
    """Why it has ended, or does not start, in the node's word: ``OOMKilled``, ``ErrImagePull``, ``Unschedulable``."""
    detail: str = ""
    """The sentence of the node or the scheduler that goes with it."""
    exit_code: int | None = None
    """Of the server, once it has ended."""
    message: str = ""
    """Its termination message, as the node has it: what it left there, or the end of its log."""
    ended: bool = False


_IMAGE = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "InvalidImageName",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
_CONTAINER = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "PreCreateHookError",
        "PreStartHookError",
        "PostStartHookError",
        "RunContainerError",
        "CreatePodSandboxError",
    }
)
"""Of the kubelet and its runtime (kubernetes/pkg/kubelet/images/types.go, kuberuntime/kuberuntime_container.go)."""
UNSCHEDULABLE = "Unschedulable"
GATED = "SchedulingGated"


def ending_of(message: str) -> Ending | None:
    """The ending in a termination message; None for any other text."""
    try:
        said = json.loads(message)
    except (ValueError, RecursionError):
        return None
    word = said.get("ended") if isinstance(said, dict) else None
    return Ending(word) if isinstance(word, str) and word in set(Ending) else None


def manner(pod: PodMention) -> str:
    """How it ended, for brackets: ``OOMKilled, exit code 137``; empty where nothing is known."""
    code = "" if pod.exit_code is None else f"exit code {pod.exit_code}"
    ending = ending_of(pod.message)
    return ", ".join(filter(None, (one_line(pod.reason, _REASON), code, ending or "")))


def last_words(message: str) -> str:
    """What a program said last, which never hosted anything: its own complaints, or else the last line there is."""
    lines = [line.strip() for line in _COLOURS.sub(" ", message).splitlines() if line.strip()]
    own = [line.removeprefix(_NAME) for line in lines if line.startswith(_NAME)]
    return one_line("; ".join(own) if own else _event(lines[-1]) if lines else "", _WORDS)


def failure(pod: PodMention) -> str:
    """How a server ended that was never in use: ``(Error, exit code 2): --port must be a port``."""
    # One that never ran has said nothing: an init container failed, or its node had no room.
    how, words = manner(pod), last_words(pod.message) or one_line(pod.detail, _DETAIL)
    return f"{f' ({how})' if how else ''}{f': {words}' if words else ''}"


def obstacle(pod: PodMention) -> str:
    """What keeps a pod from starting, and what to do about it; empty when nothing is known to."""
    reason, detail = one_line(pod.reason, _REASON), one_line(pod.detail, _DETAIL)
    told = f" ({reason})" + (f": {detail}" if detail else "")
    if pod.reason in _IMAGE:
        advice = "check spec.server.image, the registry, and imagePullSecrets in spec.server.template"
        return f"an image of the server's pod cannot be had{told}; {advice}"
    if pod.reason in _CONTAINER:
        return f"the node cannot start the server's pod{told}; check spec.server.template"
    if pod.reason == UNSCHEDULABLE:
        advice = "make room, or change spec.server.resources, spec.server.template or spec.storage"
        return f"no node takes the server's pod{told}; {advice}"
    if pod.reason == GATED:
        return f"the server's pod waits for its scheduling gates{told}; whoever set them has to remove them"
    return ""


def _event(line: str) -> str:
    """The text of a line of the server's log, which is JSON; any other line as it is."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return line
    event = said.get("event") if isinstance(said, dict) else None
    return event if isinstance(event, str) else line
