"""The reconstruction table: each value from its one source, or the instance is not re-tracked."""

from dataclasses import replace
from typing import Any

import pytest
from tests.support.adoption import POD, row, sources

from tenure.model.adoption import ReconstructionInput, ReconstructionSource, ReconstructionValue, RecoveryRead
from tenure.model.masked import Masked
from tenure.model.records import DEFAULT_PROFILE
from tenure.plan.adoption.reads import ABSENT, EXHAUSTED, Got
from tenure.plan.adoption.reconstruction import (
    MAY_BE_EMPTY,
    SOURCES,
    Execution,
    NotReadable,
    Profile,
    Rebuilt,
    RefusedMissing,
    Sources,
    exhausted_reads,
    reconstruct,
)

ROW_FIELDS: dict[ReconstructionInput, dict[str, Any]] = {
    ReconstructionInput.SESSION: {"session_id": ""},
    ReconstructionInput.TASK: {"task_id": None},
    ReconstructionInput.WORKSPACE_PATH: {"workspace_path": None},
    ReconstructionInput.CONTAINER_IDENTITY: {"container_identity": None},
    ReconstructionInput.RUNTIME: {"runtime": ""},
    ReconstructionInput.INSTANCE_ID: {"agent_execution_id": None},
    ReconstructionInput.INSTANCE_PORT: {"instance_port": None},
    ReconstructionInput.METADATA: {"metadata": None},
    ReconstructionInput.AGENT_PROFILE: {"agent_profile": ""},
}
READS = {
    ReconstructionInput.TASK_ENVIRONMENT: ("task_environment", RecoveryRead.TASK_ENVIRONMENT),
    ReconstructionInput.WORKSPACE_SOURCE_ROOTS: ("source_roots", RecoveryRead.WORKSPACE_SOURCE_ROOTS),
    ReconstructionInput.RUNTIME_ENVIRONMENT: ("environment", RecoveryRead.RUNTIME_ENVIRONMENT),
    ReconstructionInput.PROVIDER_SESSION: ("provider_session", RecoveryRead.PROVIDER_SESSION),
}


def rebuilt(found: Sources | None = None, instance: str = "instance-of-s1") -> Execution:
    """The execution, nothing being missing."""
    result = reconstruct(found or sources(), instance)
    assert isinstance(result, Rebuilt)
    return result.execution


def lacking(name: ReconstructionInput) -> Sources:
    """Sources that authoritatively have no such value."""
    if name in ROW_FIELDS:
        return sources(row=row(**ROW_FIELDS[name]))
    if name in READS:
        return sources(**{READS[name][0]: ABSENT})
    return sources(profiles={})


def test_the_table_names_one_source_for_every_value_and_every_input_is_a_value() -> None:
    assert set(SOURCES) == set(ReconstructionValue)
    inputs = {ReconstructionInput(value.value) for value in set(ReconstructionValue) - MAY_BE_EMPTY}
    assert inputs == set(ReconstructionInput)
    of_instance = {v for v, s in SOURCES.items() if s is ReconstructionSource.INSTANCE}
    assert of_instance == {
        ReconstructionValue.WORKSPACE_SOURCE_ROOTS,
        ReconstructionValue.RUNTIME_ENVIRONMENT,
        ReconstructionValue.PROVIDER_SESSION,
    }


def test_every_value_is_restored_from_its_source() -> None:
    assert rebuilt() == Execution(
        session="s1",
        task="task-1",
        workspace_path="/work/one",
        container_identity=POD,
        runtime="standalone",
        instance_id="instance-of-s1",
        instance_port=8443,
        metadata=(("secondary_profile", "office"),),
        agent_profile="coder",
        secondary_profile="office",
        task_environment="environment-1",
        workspace_source_roots=("/src",),
        runtime_environment={"PROVIDER_KEY": Masked("hush"), "TENURE_RUN_ID": Masked("run-7")},
        run_identity=Masked("run-7"),
        provider_session="provider-1",
        agent_command=("agent", "--work"),
        continue_arguments=("--continue",),
        history="full",
    )


@pytest.mark.parametrize("name", ReconstructionInput)
def test_a_value_that_its_source_does_not_have_refuses_the_instance_and_is_named(
    name: ReconstructionInput,
) -> None:
    assert reconstruct(lacking(name), "instance-of-s1") == RefusedMissing(name, (name,))


@pytest.mark.parametrize(("field", "read"), READS.values())
def test_a_read_that_is_not_answered_is_no_missing_value(field: str, read: RecoveryRead) -> None:
    found = sources(**{field: EXHAUSTED})
    assert reconstruct(found, "instance-of-s1") == NotReadable((read,))


def test_what_is_known_to_be_missing_counts_more_than_what_could_not_be_read_and_both_are_told() -> None:
    found = sources(environment=EXHAUSTED, provider_session=ABSENT)
    refused = reconstruct(found, "instance-of-s1")
    assert refused == RefusedMissing(
        ReconstructionInput.PROVIDER_SESSION, (ReconstructionInput.PROVIDER_SESSION,)
    )
    assert exhausted_reads(found) == (RecoveryRead.RUNTIME_ENVIRONMENT,)


def test_of_several_missing_values_the_first_of_the_table_is_the_one_recorded() -> None:
    found = sources(row=row(task_id=None, runtime=None), provider_session=ABSENT)
    refused = reconstruct(found, "instance-of-s1")
    assert isinstance(refused, RefusedMissing)
    assert refused.missing is ReconstructionInput.TASK
    assert len(refused.all_missing) == 3


@pytest.mark.parametrize(
    ("changed", "value"),
    [
        ({"row": row(metadata=())}, "secondary_profile"),
        ({"environment": Got({})}, "run_identity"),
        ({"profiles": {"coder": Profile(("agent",))}}, "continue_arguments"),
        ({"profiles": {"coder": Profile(("agent",))}}, "history"),
        ({"source_roots": Got(())}, "workspace_source_roots"),
    ],
)
def test_a_value_that_may_be_empty_is_empty_and_refuses_nothing(changed: dict[str, Any], value: str) -> None:
    assert not getattr(rebuilt(sources(**changed)), value)


def test_source_roots_are_the_instances_own_and_never_wider() -> None:
    assert rebuilt(sources(source_roots=Got(("/src/a",)))).workspace_source_roots == ("/src/a",)
    narrowed = sources(source_roots=Got(()), row=row(metadata=(("workspace_source_roots", "/"),)))
    assert rebuilt(narrowed).workspace_source_roots == ()


def test_commands_are_those_of_the_profile_as_it_is_now() -> None:
    now = {"coder": Profile(("agent", "--newer"))}
    assert rebuilt(sources(profiles=now)).agent_command == ("agent", "--newer")


def test_a_profile_without_a_command_refuses_the_instance() -> None:
    refused = reconstruct(sources(profiles={"coder": Profile(())}), "instance-of-s1")
    assert refused == RefusedMissing(ReconstructionInput.AGENT_COMMAND, (ReconstructionInput.AGENT_COMMAND,))


def test_a_backend_that_names_no_profile_has_a_command_of_its_own() -> None:
    own = sources(row=row(agent_profile=DEFAULT_PROFILE), profiles={})
    assert rebuilt(own).agent_command == ()
    listed = sources(row=row(agent_profile=DEFAULT_PROFILE), profiles={DEFAULT_PROFILE: Profile(("agent",))})
    assert rebuilt(listed).agent_command == ("agent",)


def test_an_agent_of_a_resource_or_of_a_named_profile_is_refused_without_that_profile() -> None:
    for lost in (row(agent_profile=DEFAULT_PROFILE, agent_process_uid="5e12"), row(agent_profile="coder")):
        refused = reconstruct(sources(row=lost, profiles={}), "instance-of-s1")
        assert refused == RefusedMissing(
            ReconstructionInput.AGENT_COMMAND, (ReconstructionInput.AGENT_COMMAND,)
        )


def test_a_single_survivor_is_rebuilt_under_its_own_id() -> None:
    assert rebuilt(instance="another").instance_id == "another"


def test_one_sessions_failure_leaves_every_other_as_it_is() -> None:
    good = sources()
    before = reconstruct(good, "instance-of-s1")
    reconstruct(replace(good, row=row("s2"), provider_session=EXHAUSTED), "instance-of-s2")
    assert reconstruct(good, "instance-of-s1") == before


def test_no_environment_value_is_shown_by_an_execution_or_its_sources() -> None:
    assert "hush" not in repr(rebuilt()) + repr(sources())
    assert "run-7" not in repr(rebuilt())
