"""The status of an AgentProcess: what the operator has seen and done, and the durable facts it plans from."""

from typing import Annotated

from pydantic import Field

from tenure.model.reasons import ConditionStatus, Phase, StopOrigin
from tenure.model.wire import Moment, Sentence, WireModel, Word

STOPS_KEPT = 10

Uid = Annotated[str, Field(max_length=64)]
Name = Annotated[str, Field(max_length=63)]


class InstanceStatus(WireModel):
    """One lifetime of the agent's process, which is one pod."""

    id: Uid | None = None
    """The UID of the pod; the agent has it as TENURE_INSTANCE_ID."""

    pod_name: Name | None = None
    """The name of the pod."""

    ordinal: Annotated[int, Field(ge=0)] = 0
    """The number of the instance. It only ever grows, so no pod name recurs."""

    started_at: Moment | None = None
    """When the pod was made."""

    row_id: Word | None = Field(default=None, alias="rowID")
    """The instance_id of the agent's row in the liveness table, once it has one."""

    template_hash: Annotated[str, Field(max_length=64)] | None = None
    """A hash of spec.template as it was when the instance was made."""

    restart_token: Annotated[str, Field(max_length=253)] = ""
    """What spec.restartToken was when the instance was made."""


class CurrentTask(WireModel):
    """The task that the agent says it holds."""

    id: int
    """The id of the task."""

    type: Word | None = None
    """The type of the task."""

    since: Moment | None = None
    """When the operator first saw the agent hold it."""


class StopStatus(WireModel):
    """One end of an instance: who asked for it, if anybody did, and what became of it."""

    instance: Uid
    """The id of the instance that ends."""

    origin: StopOrigin | None = None
    """Who asked: Resource (spec.desiredState), Table (the liveness table), Deletion, Replacement (a changed
    template or restartToken, or hung) or Disruption (an eviction, a node drain, kubectl delete pod). Absent
    when nobody asked: the process ended by itself."""

    requested_at: Moment | None = None
    """When the operator saw the request."""

    finished_at: Moment | None = None
    """When the instance was seen ended."""

    graceful: bool | None = None
    """True when the agent ended by itself, false when it was killed, absent while that is not known."""

    exit_code: int | None = None
    """The exit code of the agent's container, if it is known."""

    message: Sentence | None = None
    """What there is to say about it, in a sentence."""


class StopRecord(StopStatus):
    """A stop that is over."""

    recorded: bool = False
    """Whether the stop is in the ledger of stops in the database."""

    @property
    def owed(self) -> bool:
        """Still to be written into the ledger. A status is anybody's to edit: what is no finished stop is not."""
        finished = self.finished_at is not None and self.origin is not None and self.instance != ""
        return finished and not self.recorded


class BackoffStatus(WireModel):
    """The waiting between two starts of an agent that keeps failing."""

    failures: Annotated[int, Field(ge=0)] = 0
    """Failures in a row."""

    until: Moment | None = None
    """No new instance starts before this time."""


class Condition(WireModel):
    """One aspect of the agent's state, as of observedGeneration."""

    type: Annotated[str, Field(max_length=316)]
    """The aspect: Ready, Alive, Draining, Stopped or Stalled."""

    status: ConditionStatus
    """True, False or Unknown."""

    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """The generation of the spec that this was said about."""

    last_transition_time: Moment
    """When the status of the condition last changed."""

    reason: Annotated[str, Field(max_length=1024)]
    """The reason, in one word."""

    message: Sentence = ""
    """The reason, in a sentence."""


class Status(WireModel):
    """What the operator has seen and done. Heartbeats are not copied here: when nothing changes, nothing is
    written."""

    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """The generation of the spec that this status is about."""

    phase: Phase | None = None
    """A summary for people; programs read the conditions."""

    instance: InstanceStatus | None = None
    """The latest instance."""

    current_task: CurrentTask | None = None
    """The task that the agent says it holds; updated every ten seconds at most."""

    stop: StopStatus | None = None
    """The stop of the latest instance, if one was asked for."""

    backoff: BackoffStatus | None = None
    """The waiting between two starts of an agent that keeps failing."""

    restarts: Annotated[int, Field(ge=0)] = 0
    """How often an instance was started after one that had ended with nobody asking."""

    stops: Annotated[tuple[StopRecord, ...], Field(max_length=STOPS_KEPT)] = ()
    """The last ten stops."""

    conditions: Annotated[
        tuple[Condition, ...],
        Field(
            max_length=16,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = ()
    """Ready, Alive, Draining, Stopped and Stalled: all are there from the first status on, and none
    disappears."""
