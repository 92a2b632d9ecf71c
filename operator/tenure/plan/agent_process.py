"""The plan of one AgentProcess: a pure function of what was observed.

It reads top down: which instance this is, whether it lives or has ended, whether another is due; then status, then
the actions. A pass carries the actions out and looks again, so that each plan has to see one step only, and a crash
between two steps leaves a state from which the next plan goes on.
"""

from dataclasses import dataclass, replace

from tenure.model.pods import PodView
from tenure.model.reasons import DesiredState, EvictionPolicy, Phase, StopOrigin
from tenure.model.resources import AgentProcess
from tenure.model.status import CurrentTask, InstanceStatus, Status, StopRecord, StopStatus
from tenure.model.wire import WORD_LIMIT
from tenure.plan.actions import Action, CreatePod, DeletePod, Plan, Protect, RecordStop, WriteStatus
from tenure.plan.conditions import Facts, conditions_of, draining, phase_of
from tenure.plan.ends import End, last_word_in, record_end
from tenure.plan.instances import end_recorded, own_pods, with_instance
from tenure.plan.memory import hung_in, remember
from tenure.plan.observation import Memory, NoTable, Observation, Rows
from tenure.plan.render import protected, protection_is_the_authors
from tenure.plan.rows import RowVerdict, judge, judge_row
from tenure.plan.starts import StartVerdict, judge_start
from tenure.plan.stops import asked_by, next_stop, stop_actions

TASK_WRITE_SECONDS = 10.0
"""The current task is copied into status at most this often."""
IDLE_SECONDS = 60.0
"""An agent idle for this long loses its protection from eviction."""
UNKNOWN_RETRY_SECONDS = 5.0
"""How soon to look again at something that could not be known."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The plan, and the memory to keep for the next look."""

    plan: Plan
    memory: Memory


def plan_agent_process(observation: Observation) -> Verdict:
    """What to do now about one AgentProcess that exists."""
    if observation.orphaning:
        return Verdict(Plan(), observation.memory)
    own = own_pods(observation.resource, observation.pods)
    status = with_instance(observation.resource, own, observation.now)
    instance = status.instance
    if instance is None or not instance.id or end_recorded(status):
        return _without_instance(observation, status, own)
    pod = next((p for p in own if p.uid == instance.id), None)
    if pod is not None and not pod.ended:
        return _living(observation, status, pod, own)
    return _ended(observation, status, instance, pod)


def _living(observation: Observation, status: Status, pod: PodView, own: tuple[PodView, ...]) -> Verdict:
    resource, instance = observation.resource, status.instance
    assert instance is not None
    row = judge_row(observation.rows, pod, resource.process_kind, instance.row_id)
    memory = remember(observation, pod, row)
    patience = hung_in(observation, memory, row)
    stop = status.stop if status.stop is not None and status.stop.instance == pod.uid else None
    hung = patience == 0 and pod.agent.running and stop is None and not pod.terminating
    # Of a pod whose node does not report nobody knows whether its agent runs.
    hung = hung and pod.phase != "Unknown"
    asked = asked_by(resource, observation.template_hash, instance, row, hung=hung)
    stop = next_stop(stop, asked, pod, row, observation.now)
    task, held, task_wait = _task(observation, memory, row, status.current_task)
    if (
        row.row is not None
        and instance.row_id != row.row.instance_id
        and len(row.row.instance_id) <= WORD_LIMIT
    ):
        instance = instance.model_copy(update={"row_id": row.row.instance_id})
    status = status.model_copy(update={"stop": stop, "instance": instance, "current_task": task})
    facts = Facts(
        status=status,
        pod=pod,
        row=row,
        start=StartVerdict(),
        hung=hung,
        new_row_awaited=_first_row_in(observation, memory, row) > 0,
        stuck=_stuck_in(observation, status) == 0,
    )
    actions: list[Action] = [] if stop is None else stop_actions(resource, stop, pod, row)
    actions += _duplicates(own, pod)
    actions += _protection(resource, pod, row, memory, observation.clock, stopping=stop is not None)
    actions += _records(observation, status)
    actions += _begun(observation, stop, held)
    waits = (
        patience,
        task_wait,
        _first_row_in(observation, memory, row),
        row.expires_in if row.alive else None,
        UNKNOWN_RETRY_SECONDS if row.row is not None and not row.alive else None,
        _stuck_in(observation, status),
        _unprotect_in(observation, pod, memory),
        UNKNOWN_RETRY_SECONDS if not row.readable or draining(facts) else None,
    )
    observation = replace(observation, memory=memory)
    verdict = _verdict(observation, facts, actions, waits)
    return _with_task(verdict, resource.status, held, observation.clock)


def _ended(
    observation: Observation, status: Status, instance: InstanceStatus, pod: PodView | None
) -> Verdict:
    resource = observation.resource
    reading = observation.final_rows if observation.final_rows is not None else None
    if isinstance(observation.rows, NoTable):
        reading = observation.rows
    row = judge(
        reading,
        uid=instance.id or "",
        pod_name=instance.pod_name or "",
        process_kind=resource.process_kind,
        row_id=instance.row_id,
    )
    end, memory = End(pod=pod, row=row), remember(observation, None, row)
    observation = replace(observation, memory=memory)
    word = last_word_in(pod, observation.clock) if pod is not None else 0.0
    if word > 0 and status.stop is not None and status.stop.instance == instance.id:
        # It drains, as was said: for the moment that it takes to hear how that ended nothing else is.
        return Verdict(Plan(wake_in=word), memory)
    awaiting = _awaits(observation, status, end, word)
    if awaiting:
        facts = Facts(status=status, pod=None, row=row, start=StartVerdict(), awaiting=awaiting)
        return _verdict(observation, facts, [], (UNKNOWN_RETRY_SECONDS, word))
    status = record_end(resource, status, end, observation.now)
    # The end is made durable first; the next look, at the end recorded, decides what follows it.
    return _without_instance(observation, status, tuple(p for p in (pod,) if p), only_record=True)


def _awaits(observation: Observation, status: Status, end: End, word: float) -> str:
    """What has to be known before this end may be recorded; empty: nothing. ``word``: seconds for which the watch may
    still tell of it."""
    if end.pod is None and not observation.vanished:
        return "whether the pod still exists is being looked up"
    if word > 0:
        return "the pod is gone; how its agent ended is awaited"
    stop = status.stop
    recorded = (
        stop.origin if stop is not None and status.instance and stop.instance == status.instance.id else None
    )
    # Who asked may be settled; whether the agent ended gracefully may still be in its row, which is tried once.
    settled = recorded not in (None, StopOrigin.DISRUPTION) and observation.final_rows is not None
    if settled or end.row.readable or end.never_started:
        return ""
    return "the agent has ended; whether its row asks for a stop is being looked up"


def _without_instance(
    observation: Observation, status: Status, own: tuple[PodView, ...], *, only_record: bool = False
) -> Verdict:
    resource = observation.resource
    row = RowVerdict(applies=False, readable=True)
    stop = status.stop
    if (
        not only_record
        and stop is not None
        and resource.spec.desired_state is DesiredState.STOP_REQUESTED
        and stop.origin is not StopOrigin.RESOURCE
    ):
        # Whoever asks for a stop of what has stopped already means: stay so, until I say Running.
        status = status.model_copy(update={"stop": stop.model_copy(update={"origin": StopOrigin.RESOURCE})})
    rejection = observation.memory.rejection
    if rejection is not None and rejection.namespace_terminating and status.stop is not None:
        ended_by = status.stop.model_copy(update={"origin": StopOrigin.DELETION})
        status = status.model_copy(update={"stop": ended_by})
    start = judge_start(observation, status)
    facts = Facts(status=status, pod=None, row=row, start=start)
    actions: list[Action] = []
    if not only_record:
        actions += _clear_up(observation, own, start)
        if start.ordinal is not None:
            actions.append(CreatePod(ordinal=start.ordinal))
        actions += _records(observation, status)
    observation = replace(observation, memory=remember(observation, None, row))
    return _verdict(observation, facts, actions, (start.retry_in,), creating=start.ordinal is not None)


def _clear_up(observation: Observation, own: tuple[PodView, ...], start: StartVerdict) -> list[Action]:
    """Ended pods go just before their successor comes; a pod whose agent has ended takes its sidecars with it."""
    going = [p for p in own if not p.departed and not p.terminating]
    ready = start.ordinal is not None
    # What is not over here has ended but for its sidecars, or came back after its end was recorded. Where nothing runs
    # any more, the kubelet has yet to say that it is over: its log stays to be read.
    gone = [p for p in going if ready or not (p.over or p.all_ended)]
    born = observation.resource.metadata.creation_timestamp
    former = [
        p
        for p in observation.pods
        if p.owner_uid != observation.resource.uid
        and not p.departed
        and not p.terminating
        and born is not None
        and p.created_at is not None
        and p.created_at < born
    ]
    return [DeletePod(name=p.name, uid=p.uid, grace_seconds=None) for p in (*gone, *former)]


def _duplicates(own: tuple[PodView, ...], current: PodView) -> list[Action]:
    """A create that was given up for lost may land after all: the younger of two never gets to work."""
    return [
        DeletePod(name=p.name, uid=p.uid, grace_seconds=None)
        for p in own
        if p.uid != current.uid and not p.over and not p.terminating
    ]


def _records(observation: Observation, status: Status) -> list[Action]:
    if not observation.ledger:
        return []
    grace = observation.resource.spec.drain.grace_period_seconds
    return [RecordStop(stop=s, grace_seconds=grace) for s in status.stops if s.owed]


def _begun(observation: Observation, stop: StopStatus | None, held: CurrentTask | None) -> list[Action]:
    """A stop that begins with this look goes into the ledger with the task that it found in hand."""
    if stop is None or not observation.ledger or observation.resource.status.stop is not None:
        return []
    begun = StopRecord(**stop.model_dump(by_alias=False))
    grace = observation.resource.spec.drain.grace_period_seconds
    return [RecordStop(begun, grace, task_id=held.id if held is not None else None)]


def _task(
    observation: Observation, memory: Memory, row: RowVerdict, shown: CurrentTask | None
) -> tuple[CurrentTask | None, CurrentTask | None, float | None]:
    """The task that is reason enough to write, the one that is held, and the wait until it is reason enough."""
    if not row.readable or not isinstance(observation.rows, Rows):
        kept = shown if not isinstance(observation.rows, NoTable) else None
        return kept, kept, None
    held: CurrentTask | None = None
    if row.busy and row.row is not None and row.row.current_task_id is not None:
        held = CurrentTask(id=row.row.current_task_id, type=row.row.current_task_type, since=observation.now)
        if shown is not None and (shown.id, shown.type) == (held.id, held.type):
            held = shown
    last = memory.task_written_at
    if held != shown and last is not None and observation.clock - last < TASK_WRITE_SECONDS:
        return shown, held, TASK_WRITE_SECONDS - (observation.clock - last)
    return held, held, None


def _with_task(verdict: Verdict, before: Status, held: CurrentTask | None, clock: float) -> Verdict:
    """A status that is written anyway tells the task that is held now, however often it has changed."""
    actions, memory = verdict.plan.actions, verdict.memory
    if not actions or not isinstance(actions[0], WriteStatus):
        return verdict
    status = actions[0].status.model_copy(update={"current_task": held})
    if status.current_task != before.current_task:
        memory = replace(memory, task_written_at=clock)
    return Verdict(replace(verdict.plan, actions=(WriteStatus(status), *actions[1:])), memory)


def _first_row_in(observation: Observation, memory: Memory, row: RowVerdict) -> float:
    """Seconds for which a running agent without a row still counts as starting; 0 when it does not."""
    if not row.applies or not row.readable or row.row is not None or memory.running_since is None:
        return 0.0
    patience = 3.0 * observation.resource.spec.liveness.interval_seconds
    return max(0.0, patience - (observation.clock - memory.running_since))


def _stuck_in(observation: Observation, status: Status) -> float | None:
    limit, task = observation.resource.spec.stuck_task_seconds, status.current_task
    if limit is None or task is None or task.since is None:
        return None
    return max(0.0, limit - (observation.now - task.since).total_seconds())


def _protection(
    resource: AgentProcess, pod: PodView, row: RowVerdict, memory: Memory, clock: float, *, stopping: bool
) -> list[Action]:
    if stopping or pod.terminating or protection_is_the_authors(resource.template):
        return []
    allowed = resource.spec.eviction is EvictionPolicy.ALLOW
    on = protected(pod.annotations)
    if not on and row.busy and not allowed:
        return [Protect(name=pod.name, uid=pod.uid, on=True)]
    idle = not row.applies or (memory.idle_since is not None and clock - memory.idle_since >= IDLE_SECONDS)
    return [Protect(name=pod.name, uid=pod.uid, on=False)] if on and (idle or allowed) else []


def _unprotect_in(observation: Observation, pod: PodView, memory: Memory) -> float | None:
    if memory.idle_since is None or not protected(pod.annotations):
        return None
    return max(0.0, IDLE_SECONDS - (observation.clock - memory.idle_since))


def _verdict(
    observation: Observation,
    facts: Facts,
    actions: list[Action],
    waits: tuple[float | None, ...],
    *,
    creating: bool = False,
) -> Verdict:
    resource = observation.resource
    phase = phase_of(facts)
    status = facts.status.model_copy(
        update={
            "phase": phase,
            "observed_generation": resource.metadata.generation,
            "conditions": conditions_of(observation, facts, phase),
        }
    )
    # A pod about to be created says it all in the status written right after; a write before it would tell nothing.
    quiet = creating and phase is Phase.PENDING and facts.status == resource.status
    write: list[Action] = [] if status == resource.status or quiet else [WriteStatus(status)]
    told = [replace(a, status=status) if isinstance(a, CreatePod) else a for a in actions]
    due = [wait for wait in waits if wait is not None and wait > 0]
    return Verdict(Plan(actions=(*write, *told), wake_in=min(due, default=None)), observation.memory)
