"""Decisions about servers, instances and sessions: the promises that hold for every input."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.model.adoption import ADOPTION_PAIRS, AgentSurvival, HandoverPolicy
from tenure.model.masked import Masked
from tenure.model.records import ExecutorStatus, SessionState, TaskState
from tenure.plan.adoption.backend import MainContainer, choose
from tenure.plan.adoption.correlation import (
    Decided,
    Decision,
    Proceed,
    Retrack,
    Seen,
    Stop,
    StopNow,
    StopResult,
    Wait,
    correlate,
    settle,
)
from tenure.plan.adoption.deadline import Phase, Progress, Standing, at_deadline
from tenure.plan.adoption.gates import (
    Advertised,
    Ask,
    Contact,
    Deadline,
    Failure,
    FollowUp,
    Granted,
    HomeDirectory,
    LookAgain,
    Stored,
    Verdict,
    next_ask,
)
from tenure.plan.adoption.guards import InventoryRow
from tenure.plan.adoption.liveness import Enumeration, PodLife, RowVerdict, judge_row
from tenure.plan.adoption.reads import ABSENT, EXHAUSTED, Got
from tenure.plan.adoption.reconstruction import NotReadable, Rebuilt, RefusedMissing, reconstruct
from tenure.plan.adoption.repair import SessionView, reconcile
from tests.properties.recovery import World
from tests.properties.recovery_servers import Fault, Temper
from tests.support.adoption import HOME, NOW, POD, SERVER, ago, backend_pod, row, sources, view

CAPABILITIES = st.sampled_from((frozenset(), frozenset({"agent-survival.v1"}), frozenset({"other.v1"})))
IDENTITIES = st.builds(Advertised, st.sampled_from(("", "server-1", "another")), CAPABILITIES)
FAILURES = st.sampled_from(Failure)
ANSWERS: dict[Ask, st.SearchStrategy[Any]] = {
    Ask.IDENTITY: IDENTITIES | FAILURES,
    Ask.PROOF: st.booleans() | FAILURES,
    Ask.ROTATION: st.just(Granted(3)) | FAILURES,
    Ask.DETAILS: st.sampled_from((HomeDirectory(HOME), HomeDirectory("/elsewhere"))) | FAILURES,
    Ask.STORE_SECRET: st.sampled_from((Stored.DONE, Stored.FAILED)),
    Ask.STORE_RECORD: st.sampled_from(Stored),
}
FIELDS = {
    Ask.IDENTITY: "identity",
    Ask.PROOF: "proven",
    Ask.ROTATION: "rotation",
    Ask.DETAILS: "details",
    Ask.STORE_SECRET: "secret",
    Ask.STORE_RECORD: "record",
}


@pytest.mark.accept("O-001.6")
@given(st.data(), st.booleans(), st.integers(0, 12))
def test_whatever_a_server_answers_there_is_exactly_one_reason_and_the_pair_is_legal(
    data: st.DataObject, usable: bool, patience: int
) -> None:
    contact, asked = Contact("server-1", HOME, usable), []
    for turn in range(40):
        deadline = Deadline.RUNNING if turn < patience else Deadline.ELAPSED
        found = next_ask(contact, deadline)
        if not isinstance(found, Ask):
            break
        asked.append(found)
        contact = replace(contact, **{FIELDS[found]: data.draw(ANSWERS[found])})
    else:
        raise AssertionError("no verdict")
    assert asked == sorted(asked, key=list(Ask).index), "nothing is asked out of order"
    ours = contact.identity == replace_capabilities(contact) and contact.proven is True
    if Ask.ROTATION in asked:
        assert ours, "a credential was sent to a server that had not proven to be ours"
    if isinstance(found, LookAgain):
        return
    assert isinstance(found, Verdict)
    assert (found.outcome, found.reason) in ADOPTION_PAIRS
    if found.follow_up is FollowUp.STOP_FIRST:
        assert isinstance(contact.rotation, Granted)
        assert Ask.STORE_SECRET not in asked
    assert next_ask(contact, Deadline.ELAPSED) == found


def replace_capabilities(contact: Contact) -> Advertised | None:
    """What an own server would have said, with the capabilities that this one told of."""
    if not isinstance(contact.identity, Advertised) or not contact.identity.capabilities:
        return None
    return Advertised("server-1", contact.identity.capabilities)


SESSIONS = ("s1", "s2", "s3")
IDS = ("instance-of-s1", "instance-of-s2", "a", "b", "c", "d", "e")
STATUSES = st.sampled_from(("starting", "running", "stopping", "stopped"))
INSTANCES = st.lists(
    st.builds(Seen, st.sampled_from(IDS), st.sampled_from((*SESSIONS, "s9", "")), STATUSES),
    max_size=7,
    unique_by=lambda instance: instance.id,
).map(tuple)
ROWS = st.lists(
    st.builds(
        row,
        st.sampled_from(SESSIONS),
        status=st.sampled_from(ExecutorStatus),
        container_identity=st.sampled_from((POD, POD, "pod-0", "")),
        passthrough=st.sampled_from((False, False, True, None)),
        unstopped=st.booleans(),
    ),
    max_size=3,
    unique_by=lambda found: found.session_id,
).map(tuple)
TRACKED = st.frozensets(st.sampled_from(SESSIONS), max_size=1)


def stops_of(decision: Decision) -> tuple[Stop, ...]:
    """What a decision stops."""
    return decision.losers if isinstance(decision, Retrack) else decision.stops


@given(INSTANCES, ROWS, TRACKED)
def test_every_live_instance_is_either_tracked_or_stopped_and_never_both(
    instances: tuple[Seen, ...], rows: tuple[InventoryRow, ...], tracked: frozenset[str]
) -> None:
    found = correlate(instances, rows, SERVER, tracked)
    fate = Counter(stop.instance for stop in found.strays)
    for decision in found.decisions:
        fate.update(stop.instance for stop in stops_of(decision))
        if isinstance(decision, Retrack):
            fate.update((decision.instance,))
    expected = {i.id for i in instances if i.live and i.session_id not in tracked}
    assert fate == Counter(expected)


@given(INSTANCES, ROWS, TRACKED)
def test_every_live_row_is_decided_once_and_by_nothing_but_its_own_instances(
    instances: tuple[Seen, ...], rows: tuple[InventoryRow, ...], tracked: frozenset[str]
) -> None:
    found = correlate(instances, rows, SERVER, tracked)
    expected = [r.session_id for r in rows if r.live and r.session_id not in tracked]
    assert [d.row.session_id for d in found.decisions] == expected
    for decision in found.decisions:
        session = decision.row.session_id
        alone = correlate(tuple(i for i in instances if i.session_id == session), (decision.row,), SERVER)
        assert alone.decisions == (decision,)


@given(INSTANCES, ROWS)
def test_correlating_what_was_re_tracked_and_stopped_changes_nothing(
    instances: tuple[Seen, ...], rows: tuple[InventoryRow, ...]
) -> None:
    first = correlate(instances, rows, SERVER)
    kept = {d.instance: d.row.session_id for d in first.decisions if isinstance(d, Retrack)}
    left = tuple(i for i in instances if i.id in kept)
    again = correlate(left, rows, SERVER)
    assert {d.instance for d in again.decisions if isinstance(d, Retrack)} == set(kept)
    assert all(not stops_of(d) for d in again.decisions)
    assert again.strays == ()
    tracked = correlate(left, rows, SERVER, frozenset(kept.values()))
    assert not any(isinstance(d, Retrack) or stops_of(d) for d in tracked.decisions)


@given(INSTANCES, ROWS, st.data())
def test_stops_come_once_each_and_a_session_is_never_rebuilt_beside_an_agent_that_lives_on(
    instances: tuple[Seen, ...], rows: tuple[InventoryRow, ...], data: st.DataObject
) -> None:
    for decision in correlate(instances, rows, SERVER).decisions:
        results: dict[str, StopResult] = {}
        for _ in range(30):
            found = settle(decision, results)
            if isinstance(found, StopNow):
                assert found.stops
                assert not {s.instance for s in found.stops} & set(results)
                results.update({s.instance: data.draw(st.sampled_from(StopResult)) for s in found.stops})
            elif isinstance(found, Wait):
                flying = [i for i, r in results.items() if r is StopResult.IN_FLIGHT]
                assert flying
                results[flying[0]] = data.draw(st.sampled_from((StopResult.STOPPED, StopResult.FAILED)))
            else:
                break
        failed = {i for i, r in results.items() if r is StopResult.FAILED}
        if isinstance(found, Proceed):
            assert isinstance(decision, Retrack)
            assert found.instance == decision.instance
            assert not failed
            assert found.instance not in results
        else:
            assert isinstance(found, Decided)
            assert set(found.unstopped) == failed
            assert found.guarded_for_good is bool(failed or found.row.unstopped)
            live = {i.id for i in instances if i.live and i.session_id == found.row.session_id}
            assert live == set(results)


def read_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Any answer to a read."""
    return st.just(ABSENT) | st.just(EXHAUSTED) | values.map(Got)


PATHS = st.lists(st.sampled_from(("/src", "/src/a", "/other")), max_size=3, unique=True).map(tuple)
SOURCES = st.builds(
    sources,
    row=st.builds(
        row,
        task_id=st.sampled_from((None, "task-1")),
        metadata=st.sampled_from((None, (), (("workspace_source_roots", "/"),))),
        workspace_path=st.sampled_from((None, "/work/one")),
    ),
    task_environment=read_of(st.sampled_from(("", "environment-1"))),
    source_roots=read_of(PATHS),
    environment=read_of(st.sampled_from(({}, {"KEY": Masked("hush")}))),
    provider_session=read_of(st.sampled_from(("", "provider-1"))),
)


@given(SOURCES)
def test_a_rebuilt_execution_has_the_instances_own_roots_and_nothing_was_missing_or_unread(
    found: Any,
) -> None:
    result = reconstruct(found, "instance-of-s1")
    reads = (found.task_environment, found.source_roots, found.environment, found.provider_session)
    if isinstance(result, Rebuilt):
        assert all(isinstance(read, Got) for read in reads)
        assert result.execution.workspace_source_roots == found.source_roots.value
    elif isinstance(result, NotReadable):
        assert result.exhausted
        assert ABSENT not in reads
    else:
        assert isinstance(result, RefusedMissing)
        assert result.missing == result.all_missing[0]
    assert "hush" not in repr((found, result))


@given(
    st.builds(
        row,
        container_identity=st.sampled_from((POD, "pod-0", "", None)),
        created_by=st.sampled_from(("old", "new")),
        updated_at=st.sampled_from((ago(1), ago(1000))),
    ),
    st.none()
    | st.builds(
        Enumeration,
        st.sampled_from((SERVER, frozenset({"pod-2"}))),
        st.sampled_from((frozenset(), frozenset({"instance-of-s1"}))),
        st.just(frozenset()),
        st.just(NOW),
        st.booleans(),
    ),
    st.dictionaries(st.sampled_from((POD, "pod-0")), st.sampled_from(PodLife)),
    st.booleans(),
    st.booleans(),
)
def test_a_row_is_dead_only_by_its_own_pod_or_by_a_settled_look_at_its_own_server(
    found: InventoryRow,
    enumeration: Enumeration | None,
    pods: dict[str, PodLife],
    survival: bool,
    asked_early: bool,
) -> None:
    known = view(enumeration=enumeration, pods=pods, survival=survival, in_recovery=not asked_early)
    verdict = judge_row(found, known)
    pod = found.container_identity or ""
    gone = not pod or pods.get(pod) in (PodLife.ABSENT, PodLife.ENDED)
    looked = enumeration is not None and enumeration.settled and pod in enumeration.server
    if verdict is RowVerdict.DEAD:
        assert gone or (survival and looked and enumeration is not None and not enumeration.instances)
    if verdict is RowVerdict.LIVE and survival:
        assert looked
        assert enumeration is not None
        assert enumeration.instances
    if asked_early:
        assert verdict is RowVerdict.UNKNOWN


@given(
    st.builds(
        SessionView,
        st.just("s1"),
        st.sampled_from(SessionState),
        st.sampled_from(((), (41,))),
        st.sampled_from(TaskState),
        st.booleans(),
    ),
    st.sampled_from(RowVerdict),
    st.booleans(),
    st.booleans(),
)
def test_reconciling_a_session_again_changes_nothing(
    session: SessionView, verdict: RowVerdict, retracked: bool, unstopped: bool
) -> None:
    known: dict[str, Any] = {"retracked": retracked, "verdict": verdict, "unstopped": unstopped}
    first = reconcile(session, row(), **known)
    assert not (retracked and not first.nothing)
    after = replace(
        session, state=first.state or session.state, open_turns=(), task=first.task or session.task
    )
    if not first.abandon:
        after = replace(after, open_turns=session.open_turns)
    flagged = row(unstopped=unstopped and not retracked)
    again = reconcile(after, flagged, **{**known, "verdict": RowVerdict.UNKNOWN})
    assert again.nothing


@given(st.sampled_from(Phase), st.lists(st.tuples(st.sampled_from(Progress), st.booleans()), max_size=5))
def test_the_deadline_decides_about_each_record_alone_and_stops_nothing_that_was_not_enumerated(
    phase: Phase, found: list[tuple[Progress, bool]]
) -> None:
    standings = tuple(
        Standing(row(f"s{n}"), progress, (f"i{n}",) if seen else ())
        for n, (progress, seen) in enumerate(found)
    )
    together = at_deadline(phase, standings)
    assert together == tuple(at_deadline(phase, (one,))[0] for one in standings)
    for standing, elapsed in zip(standings, together, strict=True):
        assert {stop.instance for stop in elapsed.stops} <= set(standing.instances)
        assert not (elapsed.stops and phase is not Phase.DECIDING)
        if standing.progress in (Progress.PUBLISHED, Progress.NOT_RETRACKED):
            assert not elapsed.stops


@given(
    st.lists(
        st.builds(
            backend_pod,
            st.sampled_from(("b1", "b2", "b3", "b4")),
            st.integers(1, 4),
            revision=st.sampled_from(("", "r1", "r2")),
            main=st.sampled_from(MainContainer),
            terminating=st.booleans(),
            containers_ready=st.booleans(),
        ),
        max_size=4,
        unique_by=lambda pod: pod.uid,
    ),
    st.sampled_from((None, "b1/c1", "b2/c1", "b9/c9")),
    st.sampled_from(HandoverPolicy),
)
def test_turns_settle_and_never_go_back_and_forth(
    pods: list[Any], holder: str | None, policy: HandoverPolicy
) -> None:
    past: list[str | None] = [holder]
    for _ in range(6):
        current = choose(tuple(pods), holder, policy).current
        incarnation = current.incarnation if current else None
        if incarnation == holder:
            return
        assert incarnation is None or incarnation not in past
        past.append(incarnation)
        holder = incarnation
    raise AssertionError("turns do not settle")


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.ANSWER_LOST])
def test_a_server_that_cannot_be_enumerated_has_nothing_stopped_and_gets_no_second_one(fault: Fault) -> None:
    plain = World().with_survivor()
    plain.run()
    asked = plain.sent_at["list"]
    world = World(faults={asked + n: fault for n in range(3)}, survival=AgentSurvival.ENABLED).with_survivor()
    world.run()
    assert {what for what, _ in world.log} & {"stop", "shutdown"} == set()
    assert list(world.pods) == ["pod-1"]
    assert world.servers["pod-1"].instances == ("s1", "s2")
    assert set(world.sessions.values()) == {"waiting"}
    assert set(world.rows) == {"s1", "s2"}


@given(
    st.sampled_from(Temper), st.integers(0, 30), st.dictionaries(st.integers(1, 30), st.sampled_from(Fault))
)
def test_only_an_own_server_is_ever_sent_a_shutdown_or_a_stop(
    temper: Temper, elapses_at: int, faults: dict[int, Fault]
) -> None:
    world = World(temper=temper, faults=faults, elapses_at=elapses_at).with_survivor()
    world.run()
    foreign = (Temper.FOREIGN_IDENTITY, Temper.NO_CAPABILITIES, Temper.WRONG_PROOF, Temper.REFUSES)
    if temper in (*foreign, Temper.OTHER_HOME, Temper.SILENT):
        sent = {what for what, pod in world.log if pod == "pod-1"}
        assert sent & {"stop", "shutdown", "list"} == set()
        assert world.servers["pod-1"].instances == ("s1", "s2")
