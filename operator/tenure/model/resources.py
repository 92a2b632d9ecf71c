"""The AgentProcess as Python sees it. The CRD is generated from these models (``tenure.model.schema``).

Every field's docstring is its text in ``kubectl explain``.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, model_validator

from tenure.model.hosted import HostedSession
from tenure.model.objects import DNS_LABEL, Resource, SecretKeyRef, read_object, read_status
from tenure.model.reasons import (
    DesiredState,
    EvictionPolicy,
    HungPolicy,
    LivenessMode,
    OnExternalStop,
    RestartPolicy,
)
from tenure.model.status import Status
from tenure.model.template import VerbatimTemplate
from tenure.model.wire import Matching, WireModel, ranged, rule, rules

KIND = "AgentProcess"
PLURAL = "agentprocesses"

_BACKOFF = "maxSeconds (300 when left out) must not be less than initialSeconds (10 when left out)"
_ONE_KIND = (
    "exactly one of template and session must be given: the pod template of the agent, "
    "or its session in a ControlServer"
)
_SESSION_STAYS = (
    "session must stay as it is, and cannot be given or taken away later; make another AgentProcess instead"
)

_PROCESS_KIND = Matching(
    r"^[^\x00-\x1f\x7f-\x9f]+$", "must have 1 to 63 characters, none of them a control character"
)
_DATABASE = Matching(
    f"^{DNS_LABEL}$",
    "must be the name of one of the operator's databases: lower case letters, digits and dashes, "
    "with a letter or digit at both ends",
)


class Backoff(WireModel):
    """How long to wait before an agent that keeps failing is started again."""

    model_config = ConfigDict(
        json_schema_extra=rules(rule("self.maxSeconds >= self.initialSeconds", _BACKOFF, field=".maxSeconds"))
    )

    initial_seconds: Annotated[int, ranged(1, 3600, "seconds")] = 10
    """The wait after the first failure. It doubles with every further one."""

    max_seconds: Annotated[int, ranged(1, 86400, "seconds")] = 300
    """The longest wait. Ten minutes of running without a failure start the count anew."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.max_seconds < self.initial_seconds:
            raise ValueError(_BACKOFF)
        return self


class Drain(WireModel):
    """How an agent is stopped."""

    grace_period_seconds: Annotated[int, ranged(1, 86400, "seconds")] = 600
    """How long a stopping agent may take for the task that it holds. After that it is killed, which is
    reported as an ungraceful stop. Choose more than your longest task needs. A longer grace set while the
    agent drains is for the next instance only; a shorter one is for this one, too."""


class Hung(WireModel):
    """What happens to an agent that runs but has ceased to report."""

    policy: HungPolicy = HungPolicy.REPORT
    """Report only says so, in phase and conditions. Restart replaces the instance, with the same grace as
    any stop."""

    after_intervals: Annotated[int, ranged(3, 1000, "liveness intervals")] = 3
    """How many liveness intervals an expired heartbeat is waited for before the agent counts as hung."""


class Liveness(WireModel):
    """Where the agent reports that it is alive."""

    mode: LivenessMode = LivenessMode.TABLE
    """Table: the agent heartbeats into the liveness table of a database, and can be stopped through it.
    Pod: the operator works from the pod alone."""

    database: Annotated[str, Field(max_length=63), _DATABASE] = "default"
    """The name of one of the databases that the operator is configured with and that this namespace may
    use."""

    interval_seconds: Annotated[int, ranged(1, 3600, "seconds")] = 30
    """The time between two heartbeats, given to the agent as TENURE_LIVENESS_INTERVAL. An agent whose last
    heartbeat is more than three intervals old does not count as alive."""

    credentials_secret_ref: SecretKeyRef | None = None
    """The Secret key with the database URL for the agent, given to it as TENURE_DATABASE_URL. Leave it out
    when the template brings its own credentials."""


class AgentProcessSpec(WireModel):
    """What is wanted of the agent."""

    # That one of the two is required is said by rules, not by the schema: "Required value" alone does not say what
    # is missing.
    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "has(self.template) || has(self.session)",
                _ONE_KIND,
                reason="FieldValueRequired",
                field=".template",
            ),
            rule(
                "!has(self.template) || !has(self.session)",
                _ONE_KIND,
                reason="FieldValueForbidden",
                field=".session",
            ),
            rule(
                "has(self.session) == has(oldSelf.session)"
                " && (!has(self.session) || self.session == oldSelf.session)",
                _SESSION_STAYS,
                field=".session",
            ),
        )
    )

    desired_state: DesiredState = DesiredState.RUNNING
    """Running, or StopRequested: the agent finishes the task that it holds, takes no other, and its pod
    ends. Set it back to Running to start a new instance."""

    process_kind: Annotated[str, Field(max_length=63), _PROCESS_KIND] | None = None
    """The kind under which the agent reports, process_kind in the liveness table. The name of the object
    when left out."""

    restart_token: Annotated[str, Field(max_length=253)] = ""
    """Any text. A changed one replaces the instance, drained first, and starts an agent again that was
    stopped through the table."""

    on_external_stop: OnExternalStop = OnExternalStop.STAY
    """What follows a stop asked for through the liveness table: Stay stopped, or Restart with a new
    instance."""

    restart_policy: RestartPolicy = RestartPolicy.ON_FAILURE
    """Whether a new instance starts when the process ends and nobody asked for that: Always, OnFailure or
    Never."""

    backoff: Backoff = Backoff()
    """How long to wait before an agent that keeps failing is started again."""

    drain: Drain = Drain()
    """How an agent is stopped: whatever asked for the stop, it may finish the task that it holds within the
    grace period set here."""

    hung: Hung = Hung()
    """What happens to an agent that runs but has ceased to report."""

    stuck_task_seconds: Annotated[int, ranged(1, 31536000, "seconds")] | None = None
    """Report an agent that heartbeats but has held one task for longer than this. It is reported only,
    never acted upon. Nothing is reported when left out."""

    liveness: Liveness = Liveness()
    """Where the agent reports that it is alive. A change counts from the next instance on."""

    eviction: EvictionPolicy = EvictionPolicy.PROTECT_WHILE_BUSY
    """ProtectWhileBusy: while the agent holds a task, its pod carries the annotations by which
    cluster-autoscaler and Karpenter spare it. Allow turns that off."""

    template: VerbatimTemplate | None = None
    """The pod template of the agent, carried to the pod as it is written here. Its first container is the
    agent. A change replaces a running instance, drained first; it never starts a stopped one."""

    session: HostedSession | None = None
    """The session of a hosted agent: instead of a pod of its own it is an instance in a ControlServer, and
    outlives its backend. It stays as it was given."""

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        if (self.template is None) == (self.session is None):
            raise ValueError(_ONE_KIND)
        return self


class AgentProcess(Resource):
    """One long-running agent, in a pod of its own or hosted by a ControlServer, which is stopped without losing
    its work."""

    spec: AgentProcessSpec
    status: Status = Status()

    @property
    def process_kind(self) -> str:
        """The kind under which the agent reports: ``spec.processKind``, or else the object's name."""
        return self.spec.process_kind or self.metadata.name

    @property
    def template(self) -> dict[str, Any]:
        """The pod template. Raises ``LookupError`` for a hosted agent, which has no pod of its own."""
        if self.spec.template is None:
            raise LookupError("a hosted agent has no pod template")
        return self.spec.template


def parse_agent_process(raw: Mapping[str, Any]) -> AgentProcess:
    """The AgentProcess in ``raw``, the JSON object of the API server. ``spec.template`` is kept as it is,
    not copied.

    Raises ``InvalidResource`` when a value is none that this version knows: whoever does not understand an
    object does not act upon it.
    """
    return read_object(AgentProcess, raw)


def parse_status(raw: Mapping[str, Any]) -> Status:
    """The status alone, of an object whose spec may be unreadable. Raises ``InvalidResource``."""
    return read_status(Status, raw)
