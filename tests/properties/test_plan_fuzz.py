"""Whatever can be parsed can be planned: an observation without sense gets a plan, never an exception."""

from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tenure.model.ids import child_name
from tenure.model.liveness import EPOCH, AgentLivenessRecord
from tenure.model.pods import AgentContainer, PodView, read_pod
from tenure.model.reasons import ConditionReason, ConditionStatus, ConditionType, Phase, StopOrigin
from tenure.model.resources import AgentProcess
from tenure.model.status import (
    BackoffStatus,
    Condition,
    CurrentTask,
    InstanceStatus,
    Status,
    StopRecord,
    StopStatus,
)
from tenure.plan.actions import CreatePod, WriteStatus
from tenure.plan.agent_process import plan_agent_process
from tenure.plan.announcements import announcements
from tenure.plan.observation import Memory, NoTable, Observation, Rejection, Rows, Unreadable
from tenure.plan.render import HASH_ANNOTATION, TOKEN_ANNOTATION, render_pod
from tests.support.builders import CLOCK, NOW, process, template


def made(model: type[Any], **parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Models by their Python names; ``st.builds`` would see their aliases."""
    return st.fixed_dictionaries(parts).map(lambda values: model(**values))


OWNER = "uid-of-critic"
TIMES = st.one_of(
    st.just(NOW),
    st.datetimes(datetime(2026, 11, 1), datetime(2026, 12, 30)).map(lambda t: t.replace(tzinfo=UTC)),
    st.datetimes(datetime(1970, 1, 2), datetime(9000, 1, 1)).map(lambda t: t.replace(tzinfo=UTC)),
)
SOME_TIME = st.none() | TIMES
UIDS = st.sampled_from(("pod-1", "pod-2", "pod-3"))
NAMES = st.sampled_from((*(child_name("critic", OWNER, n) for n in (1, 2, 3, 10**12)), "other"))
TEXT = st.text(max_size=300)
ANNOTATIONS = st.dictionaries(
    st.sampled_from((HASH_ANNOTATION, TOKEN_ANNOTATION, "karpenter.sh/do-not-disrupt")), TEXT
)
AGENTS = st.builds(
    AgentContainer,
    started=st.booleans(),
    running=st.booleans(),
    container_id=st.sampled_from(("", "c")),
    started_at=SOME_TIME,
    finished_at=SOME_TIME,
    exit_code=st.none() | st.sampled_from((0, 1, 137, -1, 2**31)),
    reason=st.sampled_from(("", "OOMKilled", "ContainerStatusUnknown", "Error")),
    message=TEXT,
)
PODS = st.builds(
    PodView,
    namespace=st.just("agents"),
    name=NAMES,
    uid=UIDS,
    resource_version=st.just("1"),
    owner_uid=st.sampled_from((OWNER, "another", "")),
    owner_name=st.just("critic"),
    phase=st.sampled_from(("", "Pending", "Running", "Succeeded", "Failed", "Unknown", "New")),
    created_at=SOME_TIME,
    agent=AGENTS,
    terminating=st.booleans(),
    terminating_since=SOME_TIME,
    grace_seconds=st.none() | st.integers(0, 10**9),
    disrupted=st.booleans(),
    disruption=TEXT,
    annotations=ANNOTATIONS,
    departed=st.booleans(),
)
RECORDS = st.builds(
    AgentLivenessRecord,
    instance_id=UIDS | TEXT,
    process_kind=st.sampled_from(("critic", "other")),
    hostname=NAMES,
    pid=st.integers(),
    liveness_interval_s=st.sampled_from((0.001, 30.0, 1e9, 1e300)),
    started_at=TIMES,
    last_heartbeat_at=st.just(EPOCH) | TIMES,
    current_task_id=st.none() | st.integers(),
    current_task_type=st.none() | TEXT,
    desired_state=st.sampled_from((None, "stop_requested", "running", "?")),
)
READINGS = st.one_of(
    st.just(NoTable()),
    st.just(NoTable(allowed=("main",))),
    st.just(Unreadable(since=CLOCK, reason="no answer")),
    st.builds(Rows, now=TIMES, taken_at=st.just(CLOCK), rows=st.lists(RECORDS, max_size=3).map(tuple)),
)
STOP: dict[str, st.SearchStrategy[Any]] = {
    "instance": UIDS,
    "origin": st.none() | st.sampled_from(StopOrigin),
    "requested_at": SOME_TIME,
    "finished_at": SOME_TIME,
    "graceful": st.none() | st.booleans(),
    "exit_code": st.none() | st.integers(-1, 255),
    "message": st.none() | TEXT,
}
STATUSES = made(
    Status,
    observed_generation=st.none() | st.integers(0, 9),
    phase=st.none() | st.sampled_from(Phase),
    instance=st.none()
    | made(
        InstanceStatus,
        id=st.none() | UIDS,
        pod_name=st.none() | NAMES,
        ordinal=st.integers(0, 5),
        started_at=SOME_TIME,
        row_id=st.none() | TEXT,
        template_hash=st.none() | st.text(max_size=64),
        restart_token=st.text(max_size=253),
    ),
    current_task=st.none() | made(CurrentTask, id=st.integers(), type=st.none() | TEXT, since=SOME_TIME),
    stop=st.none() | made(StopStatus, **STOP),
    backoff=st.none() | made(BackoffStatus, failures=st.integers(0, 10**9), until=SOME_TIME),
    restarts=st.integers(0, 10**6),
    stops=st.lists(made(StopRecord, **STOP, recorded=st.booleans()), max_size=3).map(tuple),
    conditions=st.lists(
        made(
            Condition,
            type=st.sampled_from(ConditionType),
            status=st.sampled_from(ConditionStatus),
            last_transition_time=TIMES,
            reason=st.sampled_from(ConditionReason),
        ),
        max_size=5,
        unique_by=lambda c: c.type,
    ).map(tuple),
)
RESOURCES = st.builds(
    process,
    desired_state=st.sampled_from(("Running", "StopRequested")),
    restart_token=st.sampled_from(("", "a")),
    on_external_stop=st.sampled_from(("Stay", "Restart")),
    restart_policy=st.sampled_from(("Always", "OnFailure", "Never")),
    backoff=st.sampled_from(({}, {"initialSeconds": 3600, "maxSeconds": 86400})),
    hung=st.sampled_from(({}, {"policy": "Restart", "afterIntervals": 1000})),
    stuck_task_seconds=st.sampled_from((1, 31536000)),
    eviction=st.sampled_from(("ProtectWhileBusy", "Allow")),
    template=st.sampled_from((template(), template(annotations={"a": "b"}))),
    deleted=st.booleans(),
)
SECONDS = st.none() | st.floats(0, CLOCK)
MEMORIES = st.builds(
    Memory,
    instance=UIDS,
    fresh_at=SECONDS,
    expired_since=SECONDS,
    running_since=SECONDS,
    idle_since=SECONDS,
    task_written_at=SECONDS,
    rejection=st.none()
    | st.builds(
        Rejection,
        generation=st.integers(0, 2),
        message=TEXT,
        attempts=st.integers(1, 99),
        retry_at=st.floats(0, 2 * CLOCK),
        namespace_terminating=st.booleans(),
    ),
)


def _observation(resource: AgentProcess, status: Status, **seen: Any) -> Observation:
    resource = resource.model_copy(update={"status": status})
    return Observation(resource=resource, template_hash="0123", now=NOW, clock=CLOCK, **seen)


OBSERVATIONS = st.builds(
    _observation,
    RESOURCES,
    STATUSES,
    pods=st.lists(PODS, max_size=3, unique_by=lambda pod: pod.uid).map(tuple),
    rows=READINGS,
    memory=MEMORIES,
    final_rows=st.none() | READINGS,
    vanished=st.booleans(),
    orphaning=st.booleans(),
    ledger=st.booleans(),
)


@given(OBSERVATIONS)
def test_every_observation_has_a_plan_that_the_api_server_would_take(observation: Observation) -> None:
    verdict = plan_agent_process(observation)

    assert verdict.plan.wake_in is None or verdict.plan.wake_in > 0
    for action in verdict.plan.actions:
        if isinstance(action, WriteStatus):
            assert Status.model_validate(action.status.to_wire()) == action.status
            assert [c.type for c in action.status.conditions] == list(ConditionType)
            for told in announcements(observation.resource.status, action.status):
                assert told.note
        if isinstance(action, CreatePod):
            assert render_pod(observation.resource, action.ordinal, "0123")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just("2026-11-30T10:00:00Z"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                (
                    "state",
                    "terminated",
                    "running",
                    "exitCode",
                    "name",
                    "type",
                    "status",
                    "startedAt",
                    "finishedAt",
                    "reason",
                )
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries({}, optional=dict.fromkeys(("phase", "conditions", "containerStatuses"), JSON)),
    JSON,
)
def test_a_pod_of_any_shape_is_read_and_planned(status: dict[str, Any], deleted: Any) -> None:
    name = child_name("critic", OWNER, 1)
    owner = {"kind": "AgentProcess", "name": "critic", "uid": OWNER, "controller": True}
    meta = {"name": name, "namespace": "agents", "uid": "pod-1", "ownerReferences": [owner]}
    raw = {
        "metadata": {**meta, "deletionTimestamp": deleted, "deletionGracePeriodSeconds": deleted},
        "spec": {"containers": [{"name": "agent"}]},
        "status": status,
    }
    pod = read_pod(raw)
    assert len(fields(pod)) == len(PodView.__slots__)
    observation = _observation(process(), Status(), pods=(pod,), rows=Rows(now=NOW, taken_at=CLOCK))
    assert plan_agent_process(observation)
