"""``spec.session`` of an AgentProcess: an agent that runs as an instance in a control server."""

from typing import Annotated

from pydantic import ConfigDict, Field

from tenure.model.objects import DNS_LABEL, NAME_LIMIT
from tenure.model.wire import Matching, WireModel

_SERVER_NAME = Matching(
    rf"^{DNS_LABEL}(\.{DNS_LABEL})*$",
    "must be the name of a ControlServer in the same namespace: lower case letters, digits, dashes and dots",
)
_ID = Matching(
    r"^[A-Za-z0-9]([-._:A-Za-z0-9]*[A-Za-z0-9])?$",
    "must be an id: letters, digits, dashes, dots, underscores and colons, "
    "with a letter or digit at both ends",
)
PROFILE_NAME = Matching(
    rf"^{DNS_LABEL}$",
    "must be the name of a profile: lower case letters, digits and dashes, with a letter or digit at both ends",
)
_PATH = Matching(
    r"^/[^\x00-\x1f\x7f]*$",
    "must be an absolute path of the server's file system, without control characters",
)

SessionID = Annotated[str, Field(max_length=128), _ID]
ProfileName = Annotated[str, Field(max_length=NAME_LIMIT), PROFILE_NAME]
WorkspacePath = Annotated[str, Field(max_length=4096), _PATH]


class ControlServerRef(WireModel):
    """A ControlServer in the same namespace."""

    model_config = ConfigDict(json_schema_extra={"x-kubernetes-map-type": "atomic"})

    name: Annotated[str, Field(max_length=NAME_LIMIT), _SERVER_NAME]
    """The name of the ControlServer."""


class HostedSession(WireModel):
    """A session of an agent, hosted by a control server."""

    control_server_ref: ControlServerRef
    """The ControlServer that hosts the session."""

    session_id: SessionID = Field(alias="sessionID")
    """The id of the session in the database. At most one agent runs for a session at any time, whoever
    starts it."""

    task_id: SessionID = Field(alias="taskID")
    """The id of the task that the session works on."""

    agent_profile: ProfileName
    """The profile, one of the ControlServer's spec.agentProfiles, by which the agent is started."""

    workspace_path: WorkspacePath
    """The directory that the agent works in, on the server's volume. It is there already: Tenure makes, changes and
    deletes no workspace."""

    workspace_source_roots: Annotated[tuple[WorkspacePath, ...], Field(max_length=64)] = ()
    """Further directories, which are there already, that the agent may read and write through the server. They are
    fixed when the agent is started, and never widened later."""

    prompt: Annotated[str, Field(max_length=65536)] | None = None
    """What the agent is told, once; a changed restartToken tells it again. Only for a ControlServer without a
    backend: where there is one, prompts are the backend's."""
