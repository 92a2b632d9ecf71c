"""Reading an AgentProcess: what is known is kept, what is not understood is refused."""

from datetime import UTC, datetime

import pytest
from tests.integration.crds.table import ACCEPTED, REFUSED, Accepted, Refused
from tests.support.agent_manifests import Manifest, changed, hosted, manifest, stored

from tenure.model.errors import InvalidResource, UnreadableObject
from tenure.model.reasons import DesiredState, Phase, StopOrigin
from tenure.model.resources import AgentProcessSpec, parse_agent_process
from tenure.model.status import InstanceStatus, Status, StopRecord


def _as_stored(row: Refused | Accepted) -> Manifest:
    raw = row.manifest
    raw["metadata"] |= {"namespace": "team", "uid": "0b6e"}
    return raw


@pytest.mark.parametrize("row", [row for row in REFUSED if row.by_parser], ids=str)
def test_what_the_api_server_refuses_the_parser_refuses_too(row: Refused) -> None:
    """A resource may be older than a rule of its CRD."""
    with pytest.raises(InvalidResource):
        parse_agent_process(_as_stored(row))


@pytest.mark.parametrize("row", ACCEPTED, ids=str)
def test_what_the_api_server_accepts_the_parser_accepts_too(row: Accepted) -> None:
    parsed = parse_agent_process(_as_stored(row))
    assert parsed.spec.template == row.manifest["spec"].get("template")


@pytest.mark.parametrize("row", ACCEPTED, ids=str)
def test_the_accepted_manifests_name_only_fields_that_exist(row: Accepted) -> None:
    AgentProcessSpec.model_validate(row.manifest["spec"], extra="forbid")


def test_an_unknown_value_is_refused_with_the_object_the_field_and_what_is_allowed() -> None:
    with pytest.raises(InvalidResource) as refused:
        parse_agent_process(stored("reviewer", desiredState="Paused"))
    assert (
        str(refused.value) == "team/reviewer: spec.desiredState: input should be 'Running' or 'StopRequested'"
    )


def test_every_problem_is_named() -> None:
    with pytest.raises(InvalidResource) as refused:
        parse_agent_process(stored(desiredState="Paused", drain={"gracePeriodSeconds": 0}))
    assert [problem.split(":")[0] for problem in refused.value.problems] == [
        "spec.desiredState",
        "spec.drain.gracePeriodSeconds",
    ]


@pytest.mark.accept("M-2")
def test_a_refusal_quotes_no_value() -> None:
    raw = changed(stored(desiredState="hunter2"), "spec.template.spec.hostname", "hunter2")
    raw = changed(raw, "spec.liveness.database", "hunter2!")
    with pytest.raises(InvalidResource) as refused:
        parse_agent_process(raw)
    assert len(refused.value.problems) == 3
    assert "hunter2" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"metadata": None},
        {"metadata": []},
        {"metadata": {"name": "a"}},
        {"metadata": {"uid": ""}},
        {"spec": {}},
        {"spec": 1},
    ],
)
def test_an_object_of_another_shape_is_refused_and_breaks_nothing(raw: Manifest) -> None:
    with pytest.raises(UnreadableObject):
        parse_agent_process(raw)


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Sleeping"},
        {"stop": {"instance": "8d1c", "origin": "Mischief"}},
        {"stop": {"origin": "Table"}},
        {"stops": [{"instance": "8d1c", "graceful": "perhaps"}]},
        {"backoff": {"failures": -1}},
        {"instance": {"startedAt": "yesterday"}},
        {"instance": {"startedAt": "2026-11-30T12:00:00"}},
    ],
)
def test_a_status_that_nobody_wrote_down_is_refused(status: Manifest) -> None:
    with pytest.raises(InvalidResource, match=r"team/reviewer: status\."):
        parse_agent_process(stored() | {"status": status})


def test_fields_of_a_later_version_are_passed_over() -> None:
    raw = changed(stored(), "spec.drain", {"gracePeriodSeconds": 5, "politeness": "High"})
    raw["status"] = {"phase": "Running", "mood": "Good"}
    parsed = parse_agent_process(raw)
    assert parsed.spec.drain.grace_period_seconds == 5
    assert parsed.status.phase is Phase.RUNNING


def test_a_template_is_kept_word_for_word() -> None:
    template = {
        "spec": {"containers": [{"name": "agent", "of": {"tomorrow": [1, 1.5, None]}}], "hostUsers": None}
    }
    assert parse_agent_process(stored(template=template)).spec.template == template


def test_the_kind_of_process_is_the_objects_name_unless_given() -> None:
    assert parse_agent_process(stored("reviewer")).process_kind == "reviewer"
    assert parse_agent_process(stored("reviewer", processKind="critic")).process_kind == "critic"


def test_a_hosted_agent_has_a_session_and_no_template() -> None:
    raw = hosted(workspaceSourceRoots=["/src"], prompt="go on")
    raw["metadata"] |= {"namespace": "team", "uid": "0b6e"}
    parsed = parse_agent_process(raw)
    session = parsed.spec.session
    assert session is not None
    assert (session.control_server_ref.name, session.session_id, session.task_id) == ("main", "s-1", "t-1")
    assert (session.agent_profile, session.workspace_path) == ("echo", "/var/lib/tenure/work/s-1")
    assert (session.workspace_source_roots, session.prompt) == (("/src",), "go on")
    with pytest.raises(LookupError):
        _ = parsed.template


def test_an_agent_with_a_pod_has_no_session() -> None:
    parsed = parse_agent_process(stored())
    assert parsed.spec.session is None
    assert parsed.template is parsed.spec.template


def test_metadata_is_what_the_operator_works_with() -> None:
    raw = changed(stored("reviewer"), "metadata.deletionTimestamp", "2026-11-30T12:00:00Z")
    parsed = parse_agent_process(raw)
    assert (parsed.namespace, parsed.name, parsed.uid) == ("team", "reviewer", "0b6e")
    assert parsed.key == ("team", "reviewer")
    assert parsed.deleting
    assert not parse_agent_process(stored()).deleting
    assert (parsed.metadata.generation, parsed.metadata.resource_version) == (1, "7")


def test_a_resource_nobody_has_looked_at_has_an_empty_status() -> None:
    assert parse_agent_process(stored()).status == Status()
    assert parse_agent_process(stored() | {"status": {}}).status == Status()


def test_names_on_the_wire_are_those_of_the_documentation() -> None:
    noon = datetime(2026, 11, 30, 12, tzinfo=UTC)
    status = Status(
        observed_generation=1,
        instance=InstanceStatus(
            id="8d1c", pod_name="p", ordinal=1, started_at=noon, row_id="r", template_hash="h"
        ),
        stops=(StopRecord(instance="8d1c", origin=StopOrigin.TABLE, requested_at=noon, exit_code=0),),
    )
    assert status.to_wire() == {
        "observedGeneration": 1,
        "instance": {
            "id": "8d1c",
            "podName": "p",
            "ordinal": 1,
            "startedAt": "2026-11-30T12:00:00Z",
            "rowID": "r",
            "templateHash": "h",
            "restartToken": "",
        },
        "restarts": 0,
        "stops": [
            {
                "instance": "8d1c",
                "origin": "Table",
                "requestedAt": "2026-11-30T12:00:00Z",
                "exitCode": 0,
                "recorded": False,
            }
        ],
        "conditions": [],
    }


def test_times_are_kept_in_utc_whatever_offset_they_came_with() -> None:
    parsed = InstanceStatus.model_validate({"startedAt": "2026-11-30T14:00:00+02:00"})
    assert parsed.to_wire()["startedAt"] == "2026-11-30T12:00:00Z"


def test_values_do_not_change() -> None:
    parsed = parse_agent_process(stored())
    with pytest.raises(ValueError, match="frozen"):
        parsed.spec.desired_state = DesiredState.STOP_REQUESTED


def test_the_builder_writes_nothing_but_the_least() -> None:
    assert set(manifest()["spec"]) == {"template"}
