"""Random histories of launches, turns, outcomes, stops and repairs: the database does what a small model does."""

import itertools
import os
from dataclasses import dataclass, field

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from tests.support.records import BROKE, DONE, INSTALLATION, SERVER, a_launch

from tenure.model.records import SessionState
from tenure.storage.records import (
    Executor,
    LaunchRefused,
    RecordMoved,
    Records,
    Repaired,
    TurnConflict,
    TurnName,
    TurnRefused,
)

DEEP = os.environ.get("TENURE_HYPOTHESIS") == "search"
LIVE = ("running", "stopping")
OVER = ("completed", "failed", "cancelled")
_namespaces = itertools.count(1)


@dataclass
class Row:
    execution: str
    status: str = "running"
    unstopped_by: str | None = None


@dataclass
class Session:
    task: str
    state: str = "created"
    interrupted: bool = False
    passthrough: bool = False
    row: Row | None = None


@dataclass
class Turn:
    session: str
    state: str = "open"
    number: int | None = None


@dataclass
class Model:
    """What the records promise, without a database. Each method answers what the real one is to answer."""

    sessions: dict[str, Session] = field(default_factory=dict)
    tasks: dict[str, list[object]] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    adopted_by: str | None = None
    recovered_by: str | None = None

    def launch(self, name: str, task: str, execution: str, passthrough: bool) -> str:
        session = self.sessions.get(name)
        row = None if session is None or session.passthrough else session.row
        if row is not None and row.status in LIVE:
            if row.unstopped_by is not None and self.adopted_by in (None, row.unstopped_by):
                return "unstopped_agent"
            recovered = self.recovered_by is not None and self.recovered_by == self.adopted_by
            return "in use" if recovered else "recovery_in_progress"
        self.tasks.setdefault(task, ["todo", False])
        session = self.sessions.setdefault(name, Session(task, passthrough=passthrough))
        flag = session.row.unstopped_by if session.row is not None else None
        if self._abandon(name) or session.state in OVER:
            session.state = "waiting_for_input"
        session.row, session.passthrough = Row(execution, unstopped_by=flag), passthrough
        return "launched"

    def ended(self, name: str, execution: str, failed: bool, abandon: bool, completed: bool) -> bool:
        session = self._session_of(name, execution)
        if session is None or session.row is None or session.row.unstopped_by is not None:
            return False
        if session.row.status in LIVE:
            session.row.status = "failed" if failed else "stopped"
        abandoned = abandon and self._abandon(name)
        if completed or abandoned:
            self._settle(session, "completed" if completed else "waiting_for_input")
        return True

    def stopping(self, name: str, execution: str) -> bool:
        session = self._session_of(name, execution)
        if session is None or session.row is None or session.row.status not in LIVE:
            return False
        session.row.status = "stopping"
        return True

    def open(self, name: str, execution: str) -> str:
        session = self._session_of(name, execution)
        if session is None or session.row is None or session.row.status not in LIVE:
            return "not_live"
        if session.row.status == "stopping":
            return "stopping"
        if self._open_turn(name) is not None:
            return "turn_open"
        self.turns.append(Turn(name))
        session.state, session.interrupted = "running", False
        self.tasks[session.task] = ["in_progress", False]
        return "opened"

    def bind(self, index: int, number: int) -> str:
        turn = self.turns[index]
        holder = self._numbered(number)
        if holder not in (None, turn) or turn.number not in (None, number):
            return "conflict"
        turn.number = number
        return "bound"

    def apply(self, name: str, number: int, done: bool, completed: bool) -> str:
        turn = self._numbered(number)
        if turn is not None and turn.session != name:
            return "conflict"
        if turn is None:
            turn = self._open_turn(name)
            mine = [each.number for each in self.turns if each.session == name and each.number is not None]
            if turn is None or turn.number is not None or any(other > number for other in mine):
                return "unknown"
            turn.number = number
        return self._finish(
            turn, "completed" if done else "failed", "completed" if completed else "waiting_for_input"
        )

    def abandon(self, index: int) -> str:
        return self._finish(self.turns[index], "abandoned", "waiting_for_input")

    def flag(self, name: str, execution: str, incarnation: str) -> bool:
        session = self._session_of(name, execution)
        if session is None or session.row is None or session.row.status not in LIVE:
            return False
        session.row.unstopped_by = incarnation
        return True

    def clear(self, name: str) -> bool:
        session = self.sessions.get(name)
        if session is None or session.row is None or session.row.unstopped_by is None:
            return False
        session.row.unstopped_by = None
        return True

    def repair(self, name: str, execution: str, even_unstopped: bool) -> bool:
        session = self._session_of(name, execution)
        if session is None or session.row is None or session.row.status not in LIVE:
            return False
        if session.row.unstopped_by is not None and not even_unstopped:
            return False
        session.row = Row(execution, "stopped")
        at_work = self._open_turn(name) is not None or session.state in ("created", "running")
        over = session.state in OVER
        self._abandon(name)
        if not at_work:
            return True
        if not over:
            session.state, session.interrupted = "waiting_for_input", True
        task = self.tasks[session.task]
        if not self._busy(session.task):
            task[0] = "review" if task[0] == "in_progress" else task[0]
            task[1] = task[1] or not over
        return True

    def _session_of(self, name: str, execution: str) -> Session | None:
        session = self.sessions.get(name)
        ours = session is not None and session.row is not None and session.row.execution == execution
        return session if ours else None

    def _open_turn(self, name: str) -> Turn | None:
        return next((turn for turn in self.turns if turn.session == name and turn.state == "open"), None)

    def _numbered(self, number: int) -> Turn | None:
        return next((turn for turn in self.turns if turn.number == number), None)

    def _abandon(self, name: str) -> bool:
        turn = self._open_turn(name)
        if turn is not None:
            turn.state = "abandoned"
        return turn is not None

    def _finish(self, turn: Turn, state: str, session_state: str) -> str:
        if turn.state != "open":
            return "already"
        turn.state = state
        self._settle(self.sessions[turn.session], session_state)
        return "applied"

    def _settle(self, session: Session, state: str) -> None:
        if session.state not in OVER:
            session.state = state
        if not self._busy(session.task):
            self.tasks[session.task][0] = "review"

    def _busy(self, task: str) -> bool:
        return any(turn.state == "open" and self.sessions[turn.session].task == task for turn in self.turns)


class Play:
    """One history, played in the model and in the database."""

    def __init__(self, records: Records) -> None:
        self.model, self.records = Model(), records
        self.executions: dict[str, list[str]] = {}
        self.judged: list[Executor] = []
        self.turns: list[int] = []
        self.incarnations = itertools.count(1)

    async def step(self, deed: str, name: str, which: int, flag: bool, other: bool) -> None:
        known = self.executions.get(name, [])
        # The current execution, or one that is over; of a session never launched, one that never was.
        execution = known[-1 - max(0, which - 13) % len(known)] if known else "never"
        turn = which % len(self.turns) if self.turns else None
        number = which // 2 + 1
        match deed:
            case "launch":
                await self.launch(name, flag and other)
            case "ended":
                expected: object = self.model.ended(name, execution, flag, other, which == 0)
                state = SessionState.COMPLETED if which == 0 else None
                told: object = await self.records.executions.ended(
                    name, execution, failed=flag, abandon=other, session_state=state
                )
                assert told is expected
            case "stopping":
                assert await self.records.executions.stopping(name, execution) is self.model.stopping(
                    name, execution
                )
            case "open":
                await self.open(name, execution)
            case "bind" if turn is not None:
                assert await _told(self.records.turns.bind(self.turns[turn], SERVER, number)) == (
                    self.model.bind(turn, number)
                )
            case "apply":
                about = TurnName(session_id=name, server_identity=SERVER, control_turn_id=number)
                applied = self.records.turns.apply(about, DONE if flag else BROKE, completed=other)
                assert await _told(applied) == self.model.apply(name, number, flag, other)
            case "abandon" if turn is not None:
                assert await self.records.turns.abandon(self.turns[turn]) == self.model.abandon(turn)
            case "flag" if self.model.adopted_by is not None:
                by = self.model.adopted_by
                assert await self.records.inventory.flag_unstopped(name, execution, by) is (
                    self.model.flag(name, execution, by)
                )
            case "clear":
                assert await self.records.inventory.clear_unstopped(name) is self.model.clear(name)
            case "judge":
                self.judged = list(await self.records.inventory.live())
            case "repair":
                await self.repair(even_unstopped=flag)
            case "adopt" | "recovered" | "recovering":
                await self.own(deed)

    async def launch(self, name: str, passthrough: bool) -> None:
        request = a_launch(name, task_id="lonely" if name == "c" else "shared", passthrough=passthrough)
        expected = self.model.launch(name, request.task_id, request.agent_execution_id, passthrough)
        try:
            await self.records.executions.launch(request)
        except LaunchRefused as error:
            assert expected == (error.refusal or "in use")
        else:
            assert expected == "launched"
            self.executions.setdefault(name, []).append(request.agent_execution_id)

    async def open(self, name: str, execution: str) -> None:
        expected = self.model.open(name, execution)
        try:
            self.turns.append((await self.records.turns.open(name, execution)).id)
        except TurnRefused as error:
            assert expected == error.refusal
        else:
            assert expected == "opened"

    async def repair(self, *, even_unstopped: bool) -> None:
        expected = [
            one.session_id
            for one in self.judged
            if self.model.repair(one.session_id, one.agent_execution_id, even_unstopped)
        ]
        done: tuple[Repaired, ...] = await self.records.inventory.repair(
            self.judged, even_unstopped=even_unstopped
        )
        assert [one.session_id for one in done] == expected

    async def own(self, deed: str) -> None:
        servers, model = self.records.servers, self.model
        if deed == "adopt":
            new = f"incarnation-{next(self.incarnations)}"
            await servers.set_adopted(INSTALLATION, adopted_by=model.adopted_by, incarnation=new)
            model.adopted_by, model.recovered_by = new, None
        elif deed == "recovering":
            await servers.begin_recovery(INSTALLATION, adopted_by=model.adopted_by)
            model.recovered_by = None
        elif model.adopted_by is not None:
            await servers.set_recovered(INSTALLATION, model.adopted_by, adopted_by=model.adopted_by)
            model.recovered_by = model.adopted_by
        else:
            try:
                await servers.set_recovered(INSTALLATION, "somebody", adopted_by="somebody")
            except RecordMoved:
                return
            raise AssertionError("nobody adopted, so nobody has recovered")

    async def compare(self) -> None:
        """Everything durable is what the model says."""
        for name, session in self.model.sessions.items():
            found, row = await self.records.sessions.get(name), await self.records.inventory.of_session(name)
            assert found is not None
            assert (found.state, found.interrupted_at is not None) == (session.state, session.interrupted)
            assert (row and (row.agent_execution_id, row.status, row.unstopped_by)) == (
                session.row and (session.row.execution, session.row.status, session.row.unstopped_by)
            )
        for name, (state, interrupted) in self.model.tasks.items():
            task = await self.records.sessions.task(name)
            assert task is not None
            assert (task.state, task.interrupted_at is not None) == (state, interrupted)
        for id_, turn in zip(self.turns, self.model.turns, strict=True):
            stored = await self.records.turns.get(id_)
            assert stored is not None
            assert (stored.session_id, stored.state, stored.control_turn_id) == (
                turn.session,
                turn.state,
                turn.number,
            )


async def _told(call: object) -> str:
    try:
        answer = await call  # type: ignore[misc]
    except TurnConflict:
        return "conflict"
    return "bound" if answer is None else str(answer)


OFTEN = ["launch", "open", "open", "open", "bind", "apply", "ended"]
DEEDS = [
    *OFTEN,
    *OFTEN,
    "stopping",
    "abandon",
    "flag",
    "clear",
    "judge",
    "repair",
    "adopt",
    "recovered",
    "recovering",
]
steps = st.tuples(
    st.sampled_from(DEEDS),
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from([0, 0, 0, 1, 2, 3]),
    st.booleans(),
    st.booleans(),
)


@settings(
    max_examples=400 if DEEP else 30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(history=st.lists(steps, min_size=50, max_size=80))
async def test_any_history_leaves_what_the_model_leaves(
    records: Records, history: list[tuple[str, str, int, bool, bool]]
) -> None:
    play = Play(Records.over(records._pool, f"namespace-{next(_namespaces)}"))
    await play.records.servers.ensure(INSTALLATION, "workers")
    for deed, *values in history:
        await play.step(deed, *values)  # type: ignore[arg-type]
    await play.compare()
    event(f"turns: {len(play.turns) // 5 * 5} and more")
