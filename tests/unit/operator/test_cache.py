import json
from datetime import UTC, datetime

import pytest
from tests.support.objects import agent_process, pod, running, terminated

from tenure.operator import cache as module
from tenure.operator.cache import ObjectCache, ObjectKey

CRITIC = ObjectKey("agents", "critic")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def woken() -> list[ObjectKey]:
    return []


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cache(woken: list[ObjectKey], clock: Clock) -> ObjectCache:
    return ObjectCache(woken.append, clock=clock)


class TestAgentProcesses:
    def test_one_that_was_put_is_read_back_and_wakes_its_key(
        self, cache: ObjectCache, woken: list[ObjectKey]
    ) -> None:
        assert cache.put_agent_process(agent_process(version=5))
        stored = cache.agent_process(CRITIC)
        assert stored is not None
        assert stored["metadata"]["resourceVersion"] == "5"
        assert woken == [CRITIC]
        assert cache.keys() == {CRITIC}

    def test_what_is_read_is_a_copy_that_a_pass_cannot_spoil(self, cache: ObjectCache) -> None:
        cache.put_agent_process(agent_process())
        stored = cache.agent_process(CRITIC)
        assert stored is not None
        stored["spec"].clear()
        again = cache.agent_process(CRITIC)
        assert again is not None
        assert again["spec"] == {"desiredState": "Running"}

    def test_managed_fields_and_the_last_applied_manifest_are_not_kept(self, cache: ObjectCache) -> None:
        annotations = {module.LAST_APPLIED: "{}", "team": "red"}
        raw = agent_process(managedFields=[{"manager": "kubectl"}], annotations=annotations)
        cache.put_agent_process(raw)
        stored = cache.agent_process(CRITIC)
        assert stored is not None
        assert "managedFields" not in stored["metadata"]
        assert stored["metadata"]["annotations"] == {"team": "red"}
        assert raw["metadata"]["annotations"] == annotations, "the event's own body is left alone"

    def test_text_that_is_no_unicode_scalar_survives(self, cache: ObjectCache) -> None:
        cache.put_agent_process(agent_process(spec=json.loads('{"processKind": "caf\\u00e9"}')))
        stored = cache.agent_process(CRITIC)
        assert stored is not None
        assert stored["spec"]["processKind"] == "café"

    @pytest.mark.parametrize("version", [4, 5])
    def test_an_older_or_equal_version_changes_nothing_and_wakes_nobody(
        self, cache: ObjectCache, woken: list[ObjectKey], version: int
    ) -> None:
        cache.put_agent_process(agent_process(version=5))
        assert not cache.put_agent_process(agent_process(version=version, spec={"desiredState": "old"}))
        stored = cache.agent_process(CRITIC)
        assert stored is not None
        assert stored["spec"] == {"desiredState": "Running"}
        assert woken == [CRITIC]

    def test_versions_are_compared_as_numbers(self, cache: ObjectCache) -> None:
        cache.put_agent_process(agent_process(version=9))
        assert cache.put_agent_process(agent_process(version=10))

    def test_a_write_of_our_own_need_not_wake_and_its_echo_does_not_either(
        self, cache: ObjectCache, woken: list[ObjectKey]
    ) -> None:
        assert cache.put_agent_process(agent_process(version=5), wake=False)
        cache.put_agent_process(agent_process(version=5))
        assert woken == []

    def test_a_dropped_one_is_gone_and_late_events_do_not_revive_it(
        self, cache: ObjectCache, woken: list[ObjectKey]
    ) -> None:
        cache.put_agent_process(agent_process(version=5))
        assert cache.drop_agent_process(agent_process(version=6))
        assert woken == [CRITIC, CRITIC]
        assert not cache.put_agent_process(agent_process(version=7))
        assert cache.agent_process(CRITIC) is None
        assert cache.keys() == frozenset()

    def test_one_that_was_made_anew_under_the_name_replaces_the_former(self, cache: ObjectCache) -> None:
        cache.put_agent_process(agent_process(uid="first", version=5))
        assert cache.put_agent_process(agent_process(uid="second", version=8))
        assert cache.agent_process_uid(CRITIC) == "second"
        assert not cache.drop_agent_process(agent_process(uid="first", version=6)), (
            "the late end of the former"
        )
        assert not cache.put_agent_process(agent_process(uid="first", version=6))
        assert cache.agent_process_uid(CRITIC) == "second"

    def test_one_without_a_uid_is_left_out(self, cache: ObjectCache, woken: list[ObjectKey]) -> None:
        assert not cache.put_agent_process({"metadata": {"name": "critic", "namespace": "agents"}})
        assert not cache.put_agent_process({"metadata": None})
        assert woken == []

    def test_tombstones_are_limited_in_number_and_time(
        self, cache: ObjectCache, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "TOMBSTONES", 10)
        for number in range(30):
            cache.drop_agent_process(agent_process(uid=f"uid-{number}"))
        assert len(cache._tombstones) == 10
        clock.now += module.TOMBSTONE_SECONDS
        cache.drop_agent_process(agent_process(uid="another"))
        assert list(cache._tombstones) == ["another"]


class TestPods:
    def test_pods_are_found_by_the_name_of_their_owner_whichever_object_of_that_name_it_was(
        self, cache: ObjectCache, woken: list[ObjectKey]
    ) -> None:
        earlier = pod("critic-00000000-7", uid="p1")
        earlier["metadata"]["ownerReferences"][0]["uid"] = "an-earlier-object"
        cache.put_pod(earlier)
        cache.put_pod(pod("critic-11111111-1", uid="p2"))
        cache.put_pod(pod("critic-11111111-1", "elsewhere", uid="p3"))
        cache.put_pod(pod("planner-1", owner="planner", uid="p4"))
        assert {view.uid for view in cache.pods_of(CRITIC)} == {"p1", "p2"}
        assert woken[:2] == [CRITIC, CRITIC]
        assert cache.keys() == {CRITIC, ObjectKey("elsewhere", "critic"), ObjectKey("agents", "planner")}

    def test_pods_that_no_agent_process_owns_are_not_kept(
        self, cache: ObjectCache, woken: list[ObjectKey]
    ) -> None:
        assert not cache.put_pod(pod(owner=None))
        assert not cache.put_pod({"metadata": {"name": "broken"}})
        assert len(cache) == 0
        assert woken == []

    def test_a_pod_that_its_owner_lets_go_leaves_and_wakes_the_former_owner(
        self, cache: ObjectCache, woken: list[ObjectKey]
    ) -> None:
        cache.put_pod(pod(uid="p", version=1))
        assert cache.put_pod(pod(uid="p", version=2, owner=None))
        assert cache.pods_of(CRITIC) == ()
        assert woken == [CRITIC, CRITIC]

    @pytest.mark.parametrize("version", [3, 5])
    def test_an_older_or_equal_version_changes_nothing(
        self, cache: ObjectCache, woken: list[ObjectKey], version: int
    ) -> None:
        cache.put_pod(pod(version=5, phase="Running"))
        assert not cache.put_pod(pod(version=version, phase="Pending"))
        assert cache.pods_of(CRITIC)[0].phase == "Running"
        assert woken == [CRITIC]

    def test_a_dropped_pod_stays_readable_as_departed_with_its_last_state(
        self, cache: ObjectCache, woken: list[ObjectKey]
    ) -> None:
        cache.put_pod(pod(uid="p", version=5))
        cache.drop_pod(pod(uid="p", version=9, state=terminated(7, "out of ideas")))
        (view,) = cache.pods_of(CRITIC)
        assert view.departed
        assert (view.agent.exit_code, view.agent.message) == (7, "out of ideas")
        assert woken == [CRITIC, CRITIC]

    def test_a_pod_first_heard_of_by_its_end_is_evidence_too(self, cache: ObjectCache) -> None:
        cache.drop_pod(pod(uid="p", state=terminated(0)))
        assert cache.pods_of(CRITIC)[0].agent.exit_code == 0

    def test_no_event_revives_a_pod_that_was_found_missing_but_its_evidence_is_taken(
        self, cache: ObjectCache
    ) -> None:
        cache.put_pod(pod(uid="p", version=5))
        assert cache.drop_pod_uid("p")
        assert not cache.drop_pod_uid("p")
        cache.put_pod(pod(uid="p", version=6, state=terminated(3)))
        (view,) = cache.pods_of(CRITIC)
        assert view.departed
        assert view.agent.exit_code == 3

    def test_no_event_from_before_its_deletion_revives_a_pod(self, cache: ObjectCache) -> None:
        cache.put_pod(pod(uid="p", version=5))
        cache.drop_pod(pod(uid="p", version=9))
        cache.put_pod(pod(uid="p", version=8))
        assert cache.pods_of(CRITIC)[0].departed

    def test_a_pod_that_only_lost_its_label_for_a_while_is_back_when_the_server_shows_it_again(
        self, cache: ObjectCache, woken: list[ObjectKey]
    ) -> None:
        """Leaving the selector looks like a deletion, but a deleted object has no later version."""
        cache.put_pod(pod(uid="p", version=5))
        cache.drop_pod(pod(uid="p", version=9))
        woken.clear()
        assert cache.put_pod(pod(uid="p", version=9)), "a live GET"
        assert not cache.pods_of(CRITIC)[0].departed
        assert woken == [CRITIC]

    def test_a_forgotten_pod_is_gone_and_stays_gone(self, cache: ObjectCache) -> None:
        cache.put_pod(pod(uid="p", version=5))
        cache.drop_pod(pod(uid="p", version=9))
        cache.forget_pod("p")
        assert cache.pods_of(CRITIC) == ()
        assert cache.keys() == frozenset()
        assert not cache.put_pod(pod(uid="p", version=10))
        assert not cache.drop_pod(pod(uid="p", version=11))
        assert cache.pods_of(CRITIC) == ()

    def test_departed_pods_that_nobody_forgets_are_limited_in_number(
        self, cache: ObjectCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "DEPARTED_PODS", 3)
        for number in range(8):
            cache.drop_pod(pod(uid=f"p{number}", version=number + 1))
        assert [view.uid for view in cache.pods_of(CRITIC)] == ["p5", "p6", "p7"]

    def test_the_last_applied_manifest_is_not_kept(self, cache: ObjectCache) -> None:
        cache.put_pod(pod(annotations={module.LAST_APPLIED: "x" * 1000, "a": "b"}))
        assert cache.pods_of(CRITIC)[0].annotations == {"a": "b"}


class TestEvidence:
    def test_the_first_deletion_time_and_its_grace_stay_when_the_end_rewrites_them(
        self, cache: ObjectCache
    ) -> None:
        deleted = {"deletionTimestamp": "2026-11-30T10:20:00Z", "deletionGracePeriodSeconds": 600}
        cache.put_pod(pod(uid="p", version=2, **deleted))
        ending = {"deletionTimestamp": "2026-11-30T10:11:30Z", "deletionGracePeriodSeconds": 0}
        cache.drop_pod(pod(uid="p", version=3, state=terminated(0), **ending))
        (view,) = cache.pods_of(CRITIC)
        assert view.terminating_since == datetime(2026, 11, 30, 10, 10, tzinfo=UTC)
        assert view.grace_seconds == 600

    def test_a_grace_that_a_second_delete_shortened_is_the_one_that_counts(self, cache: ObjectCache) -> None:
        cache.put_pod(
            pod(
                uid="p",
                version=2,
                deletionTimestamp="2026-11-30T10:20:00Z",
                deletionGracePeriodSeconds=600,
            )
        )
        cache.put_pod(
            pod(uid="p", version=3, deletionTimestamp="2026-11-30T10:10:30Z", deletionGracePeriodSeconds=30)
        )
        (view,) = cache.pods_of(CRITIC)
        assert view.terminating_since == datetime(2026, 11, 30, 10, 10, tzinfo=UTC)
        assert view.grace_seconds == 30

    def test_how_the_agent_ended_is_kept_once_it_was_seen(self, cache: ObjectCache) -> None:
        cache.put_pod(pod(uid="p", version=2, state=terminated(137, "killed")))
        cache.put_pod(pod(uid="p", version=3, state={"waiting": {"reason": "ContainerStatusUnknown"}}))
        (view,) = cache.pods_of(CRITIC)
        assert (view.agent.exit_code, view.agent.message) == (137, "killed")

    def test_that_the_agent_had_started_is_kept(self, cache: ObjectCache) -> None:
        cache.put_pod(pod(uid="p", version=2, state=running()))
        unknown = {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}
        cache.put_pod(pod(uid="p", version=3, state=unknown))
        (view,) = cache.pods_of(CRITIC)
        assert view.agent.started
        assert view.agent.exit_code == 137

    def test_a_disruption_is_remembered_while_the_pod_ends(self, cache: ObjectCache) -> None:
        evicted = pod(
            uid="p", version=2, deletionTimestamp="2026-11-30T10:20:00Z", deletionGracePeriodSeconds=600
        )
        evicted["status"]["conditions"] = [
            {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
        ]
        cache.put_pod(evicted)
        cache.drop_pod(pod(uid="p", version=3))
        (view,) = cache.pods_of(CRITIC)
        assert view.disrupted
        assert view.disruption == "EvictionByEvictionAPI"


class TestSweeping:
    def test_what_a_complete_list_does_not_show_is_dropped(
        self, cache: ObjectCache, clock: Clock, woken: list[ObjectKey]
    ) -> None:
        cache.put_agent_process(agent_process("critic"))
        cache.put_agent_process(agent_process("planner"))
        cache.put_pod(pod(uid="p"))
        clock.now += 1
        woken.clear()
        assert cache.drop_missing_agent_processes({"uid-of-planner"}, clock.now) == 1
        assert cache.drop_missing_pods(set(), clock.now) == 1
        assert cache.agent_process(CRITIC) is None
        assert cache.pods_of(CRITIC)[0].departed
        assert woken == [CRITIC, CRITIC]

    def test_what_was_seen_since_the_list_was_asked_for_stays(self, cache: ObjectCache, clock: Clock) -> None:
        cache.put_agent_process(agent_process())
        cache.put_pod(pod())
        asked = clock.now
        clock.now += 1
        cache.put_agent_process(agent_process())
        assert cache.drop_missing_agent_processes(set(), asked + 0.5) == 0
        assert cache.drop_missing_pods(set(), asked) == 0

    def test_a_pod_that_departed_is_not_dropped_twice(self, cache: ObjectCache, clock: Clock) -> None:
        cache.drop_pod(pod())
        clock.now += 1
        assert cache.drop_missing_pods(set(), clock.now) == 0
