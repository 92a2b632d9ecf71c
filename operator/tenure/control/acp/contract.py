"""What hosting an agent and speaking with it have to do with each other: the words of both sides.

``link.Link`` is one running agent. Whoever hosts it gives it a ``Launch`` and a ``Host``; the link calls the
host for everything that the agent says.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pydantic import JsonValue

from tenure.model.errors import TenureError
from tenure.protocol.frames import PermissionAnswer, PermissionRequest


@dataclass(frozen=True)
class Launch:
    """What to run. ``env`` is the agent's whole environment, already scrubbed; ``roots`` are the canonical
    directories that its file and command requests may touch (the workspace and the source roots). ``brand`` is
    what the processes of all agents of one server have in common: see ``leftovers``."""

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str] = field(repr=False)
    roots: tuple[Path, ...]
    brand: str = ""


@dataclass(frozen=True)
class AgentExit:
    """How an agent's process ended: ``code`` when it exited, ``signal`` when it was killed, both None when
    somebody else took the status. ``failure`` is the code of the failure for which the link ended it, if any."""

    code: int | None
    signal: int | None
    failure: str = ""


class AgentFailed(TenureError):
    """An agent that did not start, ended, broke the protocol or refused a request.

    ``code`` is one of the codes below; ``message`` is a sentence of our own and holds nothing that the agent
    said. ``details`` may: it is for the instance's own stream, never for a log.

    ======================= =========================================================================
    not_started             the program cannot be run
    exited                  the process ended
    stopped                 the link was stopped
    closed_output           it closed its output and lives on
    closed_input            it closed its input and lives on
    line_too_long           a message longer than the cap
    invalid_output          more output that is no message than is put up with
    no_answer               it did not answer ``initialize`` in time
    invalid_answer          an answer that is not what ACP says
    protocol_version        it speaks another major version of ACP
    auth_required           it wants somebody to log in first
    not_supported           it does not offer what was asked (loading a session)
    agent_error             it answered with an error
    no_session              a prompt before ``new_session`` or ``load_session``
    invalid_attachment      an attachment that is no content block
    ======================= =========================================================================
    """

    def __init__(self, code: str, message: str, details: JsonValue = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details


class Host(Protocol):
    """What a link tells; implemented by whoever hosts the agent."""

    async def event(self, type: str, fields: Mapping[str, JsonValue]) -> None:
        """Something that the agent said, in agentctl's words, in the order in which it said it.

        Waits while retention is full: the link then reads no more from the agent. May be cancelled, when the
        link stops. ``type`` is never a terminal one, and the fields never hold ``type`` or
        ``control_turn_id``. Comes with every type but ``complete``, ``error``, ``permission_request`` and
        ``permission_cancelled``.
        """

    async def permission(self, request: PermissionRequest) -> PermissionAnswer:
        """The agent asks; waits without limit for the answer.

        The host announces the request (event ``permission_request``) and lists it. When the call is
        *cancelled* (the turn was cancelled, the agent withdrew the request or ended, the link stops), the
        host forgets the request and announces ``permission_cancelled``.
        """

    def activity(self) -> None:
        """Anything happened: the agent sent something."""
