"""Reading a ControlServer: what is known is kept, what is not understood is refused."""

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.integration.crds.server_table import ACCEPTED, REFUSED
from tests.integration.crds.table import Accepted, Refused
from tests.support.agent_manifests import Manifest, changed
from tests.support.server_manifests import stored_server

from tenure.model.adoption import AgentSurvival, HandoverPolicy, SurvivalCode
from tenure.model.control_server import ControlServerSpec, parse_control_server, parse_server_status
from tenure.model.errors import InvalidResource, UnreadableObject
from tenure.model.reasons import ServerPhase
from tenure.model.records import SurvivalEffective
from tenure.model.server_status import AdjustmentStatus, InstanceMention, ServerStatus, SurvivalStatus
from tenure.plan.adoption.survival import on_windows, resolve

BY_LABEL = {"selector": {"matchLabels": {"app": "backend"}}}


def _as_stored(row: Refused | Accepted) -> Manifest:
    raw = row.manifest
    raw["metadata"] |= {"namespace": "team", "uid": "5e12"}
    return raw


@pytest.mark.parametrize("row", [row for row in REFUSED if row.by_parser], ids=str)
def test_what_the_api_server_refuses_the_parser_refuses_too(row: Refused) -> None:
    """A resource may be older than a rule of its CRD."""
    with pytest.raises(InvalidResource):
        parse_control_server(_as_stored(row))


@pytest.mark.parametrize("row", ACCEPTED, ids=str)
def test_what_the_api_server_accepts_the_parser_accepts_too(row: Accepted) -> None:
    assert parse_control_server(_as_stored(row)).uid == "5e12"


@pytest.mark.parametrize("row", ACCEPTED, ids=str)
def test_the_accepted_manifests_name_only_fields_that_exist(row: Accepted) -> None:
    ControlServerSpec.model_validate(row.manifest["spec"], extra="forbid")


def test_the_least_one_has_the_documented_defaults() -> None:
    spec = parse_control_server(stored_server()).spec
    assert spec.agent_survival is AgentSurvival.DISABLED
    assert spec.backend is None
    assert (spec.server.image, spec.server.resources, spec.server.template) == (None, None, None)
    assert (spec.storage.empty_dir, spec.storage.volume_claim_template) == (None, None)
    reads = spec.recovery.read_timeout_milliseconds, spec.recovery.read_retries
    assert (spec.recovery.deadline_seconds, *reads) == (30, 2000, 2)
    assert (spec.unowned_period_seconds, spec.idle_timeout_seconds, spec.detached_event_limit) == (
        600,
        3600,
        100,
    )
    assert spec.agent_profiles == ()


def test_the_installation_is_the_objects_uid_unless_given() -> None:
    assert parse_control_server(stored_server(uid="5e12")).effective_installation_id == "5e12"
    assert parse_control_server(stored_server(installationID="main")).effective_installation_id == "main"


@pytest.mark.accept("K-9")
def test_an_edited_status_moves_no_installation() -> None:
    raw = stored_server(uid="5e12") | {"status": {"installationID": "another"}}
    assert parse_control_server(raw).effective_installation_id == "5e12"


def test_a_backend_hands_over_when_its_successor_is_ready_unless_said_otherwise() -> None:
    backend = parse_control_server(stored_server(backend=BY_LABEL)).spec.backend
    assert backend is not None
    assert (backend.container, backend.handover) == (None, HandoverPolicy.ON_READY)


@pytest.mark.accept("S-005.4")
@pytest.mark.parametrize("row", [row for row in REFUSED if "Windows" in row.what], ids=str)
def test_survival_where_it_is_unavailable_is_read_and_reported_not_left_unread(row: Refused) -> None:
    """An object may be older than the rule, and its status has to say what holds."""
    spec = parse_control_server(_as_stored(row)).spec
    windows = on_windows(spec.server_pod_spec)
    resolved = resolve(spec.agent_survival, windows=windows, durable_store=True, secret_access=True)
    assert (resolved.effective, resolved.code) == (
        SurvivalEffective.UNAVAILABLE,
        SurvivalCode.PLATFORM_WINDOWS,
    )


def test_profiles_are_found_by_name() -> None:
    raw = stored_server(agentProfiles=[{"name": "a", "command": ["x"]}, {"name": "b", "command": ["y", "z"]}])
    spec = parse_control_server(raw).spec
    found = spec.profile("b")
    assert found is not None
    assert found.command == ("y", "z")
    assert spec.profile("c") is None


@pytest.mark.accept("M-2")
def test_neither_a_refusal_nor_a_profile_shows_the_value_of_a_variable() -> None:
    profile: dict[str, Any] = {"name": "a", "command": ["x"], "env": [{"name": "KEY", "value": "hunter2"}]}
    assert "hunter2" not in repr(parse_control_server(stored_server(agentProfiles=[profile])))
    both = changed(stored_server(), "spec.agentProfiles", [profile | {"command": []}])
    both = changed(both, "spec.installationID", "Hunter2")
    with pytest.raises(InvalidResource) as refused:
        parse_control_server(both)
    assert len(refused.value.problems) == 2
    assert "unter2" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_refusal_names_the_object_the_field_and_what_is_allowed() -> None:
    with pytest.raises(InvalidResource) as refused:
        parse_control_server(stored_server(recovery={"deadlineSeconds": 10}))
    assert str(refused.value).startswith(
        "team/main: spec.recovery: readTimeoutMilliseconds x (readRetries + 1)"
    )


@pytest.mark.parametrize(
    "raw",
    [{}, {"metadata": None}, {"metadata": {"name": "a"}}, {"spec": None}, {"spec": []}],
)
def test_an_object_of_another_shape_is_refused_and_breaks_nothing(raw: Manifest) -> None:
    with pytest.raises(UnreadableObject):
        parse_control_server({**stored_server(), **raw} if "spec" in raw else raw)


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Sleeping"},
        {"survival": {"effective": "Perhaps"}},
        {"survival": {"reasonCode": "no_mood"}},
        {"recovery": {"retracked": -1}},
        {"unstoppedInstances": [{"sessionID": "s"}]},
        {"conditions": [{"type": "Ready"}]},
    ],
)
def test_a_status_that_nobody_wrote_down_is_refused(status: Manifest) -> None:
    with pytest.raises(InvalidResource, match=r"team/main: status\."):
        parse_control_server(stored_server() | {"status": status})
    with pytest.raises(InvalidResource, match="status: not understood"):
        parse_server_status(stored_server() | {"status": status})


def test_a_status_is_read_beside_a_spec_that_is_not() -> None:
    raw = stored_server(agentSurvival="Maybe") | {"status": {"phase": "Running"}}
    assert parse_server_status(raw).phase is ServerPhase.RUNNING


def test_fields_of_a_later_version_are_passed_over() -> None:
    raw = stored_server(mood="Good", recovery={"deadlineSeconds": 60, "pace": "Calm"})
    assert parse_control_server(raw).spec.recovery.deadline_seconds == 60


def test_what_is_carried_verbatim_is_kept_word_for_word() -> None:
    template = {
        "spec": {"containers": [{"name": "proxy", "of": {"tomorrow": [1, 1.5, None]}}], "hostUsers": None}
    }
    claim = {"accessModes": ["ReadWriteOnce"], "of": {"tomorrow": None}}
    raw = stored_server(
        server={"template": template, "resources": {"limits": {"cpu": 1}}},
        storage={"volumeClaimTemplate": {"spec": claim}},
    )
    spec = parse_control_server(raw).spec
    assert spec.server.template == template
    assert spec.server_pod_spec == template["spec"]
    assert spec.server.resources == {"limits": {"cpu": 1}}
    assert spec.storage.volume_claim_template is not None
    assert spec.storage.volume_claim_template.spec == claim


@pytest.mark.parametrize("template", [None, {}, {"spec": None}, {"metadata": {}}])
def test_a_server_without_a_pod_spec_asks_for_nothing(template: Manifest | None) -> None:
    raw = stored_server(server={} if template is None else {"template": template})
    assert parse_control_server(raw).spec.server_pod_spec == {}


def test_names_on_the_wire_are_those_of_the_documentation() -> None:
    noon = datetime(2026, 11, 30, 12, tzinfo=UTC)
    status = ServerStatus.model_validate(
        {
            "installationID": "main",
            "serverIdentity": "cs-1",
            "adoptedBy": "a",
            "recoveredBy": "b",
            "diagnosticOutput": "/log",
            "pod": {"name": "p", "uid": "u", "ordinal": 2},
            "backend": {"podName": "p", "incarnation": "i"},
            "recovery": {"startedAt": noon, "notRetracked": 1},
            "unstoppedInstances": [{"id": "i", "sessionID": "s"}],
        }
    )
    wire = status.to_wire()
    assert set(wire) >= {"installationID", "serverIdentity", "adoptedBy", "recoveredBy", "diagnosticOutput"}
    assert wire["pod"] == {"name": "p", "uid": "u", "ordinal": 2}
    assert wire["backend"] == {"podName": "p", "incarnation": "i"}
    recovery = {"retracked": 0, "notRetracked": 1, "refused": 0, "stopped": 0}
    assert wire["recovery"] == {"startedAt": "2026-11-30T12:00:00Z", **recovery}
    assert wire["unstoppedInstances"] == [{"id": "i", "sessionID": "s", "reason": ""}]


def test_what_a_server_says_is_cut_to_what_a_status_takes() -> None:
    """A server is not trusted to be brief, and one long word must not make every status refused."""
    long = "x" * 10_000
    status = ServerStatus(
        capabilities=(long,),
        diagnostic_output=long,
        survival=SurvivalStatus(),
        unstopped_instances=(InstanceMention(id="i", session_id=long, reason=long),),
        adjustments=(
            AdjustmentStatus(
                setting=long, requested_milliseconds=2**80, effective_milliseconds=-1, reason=long
            ),
        ),
    )
    assert len(status.capabilities[0]) == 253
    assert len(status.diagnostic_output or "") == 4096
    assert len(status.unstopped_instances[0].session_id or "") == 253
    (adjustment,) = status.adjustments
    assert (adjustment.requested_milliseconds, adjustment.effective_milliseconds) == (2**53, 0)
    assert len(adjustment.reason) == 1024


def test_a_resource_nobody_has_looked_at_has_an_empty_status() -> None:
    assert parse_control_server(stored_server()).status == ServerStatus()
    assert parse_control_server(stored_server() | {"status": {}}).status == ServerStatus()
