"""The flag of survival, resolved."""

import pytest
from tests.support.adoption import survival

from tenure.model.adoption import AgentSurvival, SurvivalCode
from tenure.model.records import SurvivalEffective
from tenure.plan.adoption.survival import on_windows, resolve, survives

ENABLED, DISABLED = SurvivalEffective.ENABLED, SurvivalEffective.DISABLED


@pytest.mark.parametrize("requested", AgentSurvival)
def test_what_is_asked_for_is_effective_where_nothing_is_in_its_way(requested: AgentSurvival) -> None:
    found = resolve(requested, windows=False, durable_store=True, secret_access=True)
    assert (found.effective.value, found.code, found.server_possible) == (requested.value, None, True)


@pytest.mark.parametrize("requested", AgentSurvival)
@pytest.mark.parametrize(
    ("windows", "store", "secrets", "code", "possible"),
    [
        (True, True, True, SurvivalCode.PLATFORM_WINDOWS, True),
        (False, False, True, SurvivalCode.NO_DURABLE_STORE, False),
        (False, True, False, SurvivalCode.NO_SECRET_ACCESS, False),
        (True, False, False, SurvivalCode.NO_DURABLE_STORE, False),
    ],
)
def test_unavailable_is_a_third_state_with_a_code_whatever_is_asked_for(
    requested: AgentSurvival, windows: bool, store: bool, secrets: bool, code: SurvivalCode, possible: bool
) -> None:
    found = resolve(requested, windows=windows, durable_store=store, secret_access=secrets)
    assert found.effective is SurvivalEffective.UNAVAILABLE
    assert (found.requested, found.code, found.server_possible) == (requested, code, possible)


def test_a_pod_for_windows_is_known_by_its_os_or_its_node_selector() -> None:
    assert on_windows({"os": {"name": "windows"}})
    assert on_windows({"nodeSelector": {"kubernetes.io/os": "windows"}})
    assert not on_windows({})
    assert not on_windows({"os": {"name": "linux"}, "nodeSelector": {"kubernetes.io/os": "linux"}})
    assert not on_windows({"os": "windows", "nodeSelector": None})


def test_a_change_of_the_flag_waits_for_the_next_incarnation() -> None:
    assert survives(survival(DISABLED), ENABLED, "new", "new")
    assert not survives(survival(ENABLED), DISABLED, "new", "new")
    assert not survives(survival(DISABLED), ENABLED, "old", "new")


def test_agents_of_an_incarnation_without_survival_end_with_it_even_if_it_is_on_for_the_next() -> None:
    assert not survives(survival(ENABLED), DISABLED, "old", "new")
    assert not survives(survival(ENABLED), DISABLED, "old", None)
    assert survives(survival(DISABLED), ENABLED, "old", None)


def test_where_survival_is_unavailable_nothing_survives() -> None:
    assert not survives(survival(SurvivalEffective.UNAVAILABLE), ENABLED, "old", "new")
    assert not survives(survival(), SurvivalEffective.UNAVAILABLE, "new", "new")
