"""What is counted and told of adoption: legal pairs only, each thing once."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.support.server_manifests import stored_server

from tenure.model.adoption import ADOPTION_PAIRS, AdoptionOutcome, AdoptionReason, LaunchRefusal
from tenure.model.control_server import parse_control_server
from tenure.model.reasons import EventReason, ServerPhase
from tenure.operator.events import EventRecorder
from tenure.operator.servers.executions import ExecutionStore
from tenure.operator.servers.ports import ServerKey
from tenure.operator.servers.telling import Telling, stopped_itself
from tenure.telemetry.metrics import ClaimResult, Metrics

KEY = ServerKey("team", "main")
RESOURCE = parse_control_server(stored_server("main", "team", "uid-1"))
LAST_WORDS = '{"ended": "unowned", "server_identity": "cs-1", "unowned_period_ms": 600000}\n'


class Heard(EventRecorder):
    """Events as they were emitted."""

    def __init__(self) -> None:
        self.said: list[tuple[EventReason, str]] = []

    def emit(
        self,
        regarding: Mapping[str, str],
        reason: EventReason,
        note: str,
        *,
        warning: bool = False,
        action: str = "",
    ) -> None:
        self.said.append((reason, note))


class Teller:
    """One process, which may lead several times."""

    def __init__(self) -> None:
        self.metrics, self.heard = Metrics(), Heard()
        self.telling = self.lead()

    def lead(self) -> Telling:
        self.telling = Telling(self.metrics, self.heard, ExecutionStore())
        return self.telling

    def count(self, name: str, **labels: Any) -> float:
        found = self.metrics.registry.get_sample_value(name, {k: str(v) for k, v in labels.items()})
        assert found is not None
        return found


@pytest.mark.accept("M-1")
@pytest.mark.parametrize(("outcome", "reason"), ADOPTION_PAIRS)
def test_each_attempt_is_counted_under_its_one_pair(outcome: AdoptionOutcome, reason: AdoptionReason) -> None:
    teller = Teller()
    assert teller.count("tenure_adoptions_total", outcome=outcome, reason=reason) == 0
    teller.telling.adoption_ended(KEY, RESOURCE, outcome.value, reason.value)
    counted = {
        pair: teller.count("tenure_adoptions_total", outcome=pair[0], reason=pair[1])
        for pair in ADOPTION_PAIRS
    }
    assert counted == {pair: float(pair == (outcome, reason)) for pair in ADOPTION_PAIRS}


def test_a_pair_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="never"):
        Teller().telling.adoption_ended(KEY, RESOURCE, "adopted", "no_answer")


@pytest.mark.accept("M-1")
def test_a_server_that_stopped_itself_is_counted_once_for_each_pod_whoever_leads() -> None:
    teller = Teller()
    assert teller.telling.server_ended(RESOURCE, "pod-1", 10, LAST_WORDS)
    assert not teller.telling.server_ended(RESOURCE, "pod-1", 10, LAST_WORDS)
    assert not teller.lead().server_ended(RESOURCE, "pod-1", 10, LAST_WORDS)
    assert teller.telling.server_ended(RESOURCE, "pod-2", 10, LAST_WORDS)
    assert teller.count("tenure_unowned_shutdowns_total") == 2
    assert [reason for reason, _ in teller.heard.said] == [EventReason.UNOWNED_SHUTDOWN] * 2


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (0, LAST_WORDS),
        (137, LAST_WORDS),
        (None, LAST_WORDS),
        (10, ""),
        (10, "[]"),
        (10, '{"ended": "ordered"}'),
    ],
)
def test_no_other_end_of_a_server_counts(code: int | None, message: str) -> None:
    assert not stopped_itself(code, message)


@pytest.mark.accept("M-1")
@pytest.mark.parametrize("refusal", LaunchRefusal)
def test_a_refused_launch_is_counted_by_its_reason(refusal: LaunchRefusal) -> None:
    teller = Teller()
    teller.telling.launch_refused({"uid": "a-1"}, "s-1", refusal)
    teller.telling.launch_refused({"uid": "a-1"}, "s-1", None)
    assert teller.count("tenure_launches_refused_total", reason=refusal) == 1
    assert [reason for reason, _ in teller.heard.said] == [EventReason.LAUNCH_REFUSED]


def test_servers_are_counted_by_phase_with_the_rotations_that_are_not_confirmed() -> None:
    teller, other = Teller(), ServerKey("team", "other")
    teller.telling.stands(KEY, ServerPhase.RUNNING, unconfirmed=True)
    teller.telling.stands(other, ServerPhase.RUNNING, unconfirmed=False)
    assert teller.count("tenure_control_servers", phase=ServerPhase.RUNNING) == 2
    assert teller.count("tenure_unconfirmed_rotations") == 1
    teller.telling.stands(KEY, ServerPhase.DETACHED, unconfirmed=False)
    teller.telling.stands(other, None, unconfirmed=False)
    assert teller.count("tenure_control_servers", phase=ServerPhase.RUNNING) == 0
    assert teller.count("tenure_control_servers", phase=ServerPhase.DETACHED) == 1
    assert teller.count("tenure_unconfirmed_rotations") == 0
    teller.telling.leaves()
    assert teller.count("tenure_control_servers", phase=ServerPhase.DETACHED) == 0


def test_every_result_of_a_renewal_is_there_from_the_start() -> None:
    teller = Teller()
    for result in ClaimResult:
        assert teller.count("tenure_claims_total", result=result) == 0
        teller.metrics.claimed(result)
        assert teller.count("tenure_claims_total", result=result) == 1
