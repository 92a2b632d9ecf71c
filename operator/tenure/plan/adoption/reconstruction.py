"""The reconstruction table: what an execution is made of, and the one source of each value.

A value that its source does not have refuses the instance. A read that was not answered says nothing about the value:
the instance is not re-tracked, and nobody is told that something was missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tenure.model.adoption import ReconstructionInput, ReconstructionSource, ReconstructionValue, RecoveryRead
from tenure.model.masked import Masked
from tenure.model.records import DEFAULT_PROFILE
from tenure.plan.adoption.guards import InventoryRow
from tenure.plan.adoption.reads import Absent, Exhausted, Got, Read

SOURCES: Mapping[ReconstructionValue, ReconstructionSource] = MappingProxyType(
    {
        ReconstructionValue.SESSION: ReconstructionSource.INVENTORY,
        ReconstructionValue.TASK: ReconstructionSource.INVENTORY,
        ReconstructionValue.WORKSPACE_PATH: ReconstructionSource.INVENTORY,
        ReconstructionValue.CONTAINER_IDENTITY: ReconstructionSource.INVENTORY,
        ReconstructionValue.RUNTIME: ReconstructionSource.INVENTORY,
        ReconstructionValue.INSTANCE_ID: ReconstructionSource.INVENTORY,
        ReconstructionValue.INSTANCE_PORT: ReconstructionSource.INVENTORY,
        ReconstructionValue.METADATA: ReconstructionSource.INVENTORY,
        ReconstructionValue.AGENT_PROFILE: ReconstructionSource.INVENTORY,
        ReconstructionValue.SECONDARY_PROFILE: ReconstructionSource.INVENTORY,
        ReconstructionValue.TASK_ENVIRONMENT: ReconstructionSource.SESSION_RECORD,
        ReconstructionValue.WORKSPACE_SOURCE_ROOTS: ReconstructionSource.INSTANCE,
        ReconstructionValue.RUNTIME_ENVIRONMENT: ReconstructionSource.INSTANCE,
        ReconstructionValue.RUN_IDENTITY: ReconstructionSource.DERIVED,
        ReconstructionValue.PROVIDER_SESSION: ReconstructionSource.INSTANCE,
        ReconstructionValue.AGENT_COMMAND: ReconstructionSource.DERIVED,
        ReconstructionValue.CONTINUE_ARGUMENTS: ReconstructionSource.DERIVED,
        ReconstructionValue.HISTORY: ReconstructionSource.DERIVED,
    }
)
"""Exactly one source for each value. Derived: from a value restored from one of the other sources."""

MAY_BE_EMPTY: frozenset[ReconstructionValue] = frozenset(
    {
        ReconstructionValue.SECONDARY_PROFILE,
        ReconstructionValue.RUN_IDENTITY,
        ReconstructionValue.CONTINUE_ARGUMENTS,
        ReconstructionValue.HISTORY,
    }
)
"""Values without which an execution is complete. Each of the others is a ``ReconstructionInput``."""

SECONDARY_PROFILE_KEY = "secondary_profile"
"""Where the metadata holds the secondary profile."""
RUN_IDENTITY_VARIABLE = "TENURE_RUN_ID"
"""Where the runtime environment holds the run identity."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile of ``spec.agentProfiles`` as it is now. Secrets of its environment are not part of it."""

    command: tuple[str, ...]
    continue_arguments: tuple[str, ...] = ()
    history: str = ""


OF_THE_LAUNCHER = Profile(())
"""Of a launch by the library that names no profile: its command is the backend's own, and nobody else ever starts that
agent. A profile that was named and is not there any more is missing."""


@dataclass(frozen=True, slots=True)
class Sources:
    """What the sources said about one session and its instance."""

    row: InventoryRow
    task_environment: Read[str]
    """The session's own record."""
    source_roots: Read[tuple[str, ...]]
    """The instance's own; an empty tuple is a value and permits nothing."""
    environment: Read[Mapping[str, Masked]]
    """The instance's own: for memory only."""
    provider_session: Read[str]
    """The instance's own."""
    profiles: Mapping[str, Profile]
    """``spec.agentProfiles`` by name."""


@dataclass(frozen=True, slots=True)
class Execution:
    """A usable execution of a surviving agent. It lives in memory: its environment is never stored or logged."""

    session: str
    task: str
    workspace_path: str
    container_identity: str
    runtime: str
    instance_id: str
    instance_port: int
    metadata: tuple[tuple[str, str], ...]
    agent_profile: str
    secondary_profile: str
    task_environment: str
    workspace_source_roots: tuple[str, ...]
    runtime_environment: Mapping[str, Masked]
    run_identity: Masked
    provider_session: str
    agent_command: tuple[str, ...]
    continue_arguments: tuple[str, ...]
    history: str


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """Nothing is missing."""

    execution: Execution


@dataclass(frozen=True, slots=True)
class RefusedMissing:
    """A source answered that it has no such value: the instance is refused, which is recorded, and stopped. ``missing``
    is the first by the order of the table, ``all_missing`` are all."""

    missing: ReconstructionInput
    all_missing: tuple[ReconstructionInput, ...]


@dataclass(frozen=True, slots=True)
class NotReadable:
    """Reads used up their retries, and nothing is known to be missing: not re-tracked, and stopped."""

    exhausted: tuple[RecoveryRead, ...]


Reconstruction = Rebuilt | RefusedMissing | NotReadable


def exhausted_reads(sources: Sources) -> tuple[RecoveryRead, ...]:
    """The reads that used up their retries, whatever becomes of the instance: each is counted."""
    reads: tuple[tuple[RecoveryRead, object], ...] = (
        (RecoveryRead.TASK_ENVIRONMENT, sources.task_environment),
        (RecoveryRead.WORKSPACE_SOURCE_ROOTS, sources.source_roots),
        (RecoveryRead.RUNTIME_ENVIRONMENT, sources.environment),
        (RecoveryRead.PROVIDER_SESSION, sources.provider_session),
    )
    return tuple(name for name, read in reads if isinstance(read, Exhausted))


def missing_inputs(sources: Sources) -> tuple[ReconstructionInput, ...]:
    """The inputs that their sources do not have, in the order of the table."""
    row = sources.row
    profile = _profile(sources)
    lacking: dict[ReconstructionInput, bool] = {
        ReconstructionInput.SESSION: not row.session_id,
        ReconstructionInput.TASK: not row.task_id,
        ReconstructionInput.WORKSPACE_PATH: not row.workspace_path,
        ReconstructionInput.CONTAINER_IDENTITY: not row.container_identity,
        ReconstructionInput.RUNTIME: not row.runtime,
        ReconstructionInput.INSTANCE_ID: not row.agent_execution_id,
        ReconstructionInput.INSTANCE_PORT: row.instance_port is None,
        ReconstructionInput.METADATA: row.metadata is None,
        ReconstructionInput.AGENT_PROFILE: not row.agent_profile,
        ReconstructionInput.TASK_ENVIRONMENT: _lacks(sources.task_environment),
        ReconstructionInput.WORKSPACE_SOURCE_ROOTS: isinstance(sources.source_roots, Absent),
        ReconstructionInput.RUNTIME_ENVIRONMENT: isinstance(sources.environment, Absent),
        ReconstructionInput.PROVIDER_SESSION: _lacks(sources.provider_session),
        # A profile that is not named is missing itself; what would be derived from it is not missing on top.
        ReconstructionInput.AGENT_COMMAND: bool(row.agent_profile)
        and (profile is None or not (profile.command or profile is OF_THE_LAUNCHER)),
    }
    return tuple(name for name in ReconstructionInput if lacking[name])


def reconstruct(sources: Sources, instance: str) -> Reconstruction:
    """Rebuild the execution of ``instance``, the one that correlation found.

    The instance itself is named by what is asked: a single survivor is the session's whatever its id, and its row is
    brought into line when the session is published. Every other value is taken from its one source.
    """
    missing = missing_inputs(sources)
    if missing:
        return RefusedMissing(missing[0], missing)
    row = sources.row
    task_environment, roots = sources.task_environment, sources.source_roots
    environment, provider = sources.environment, sources.provider_session
    if not (
        isinstance(task_environment, Got)
        and isinstance(roots, Got)
        and isinstance(environment, Got)
        and isinstance(provider, Got)
    ):
        return NotReadable(exhausted_reads(sources))
    assert row.instance_port is not None
    metadata = row.metadata or ()
    profile = _profile(sources) or OF_THE_LAUNCHER
    return Rebuilt(
        Execution(
            session=row.session_id,
            task=row.task_id or "",
            workspace_path=row.workspace_path or "",
            container_identity=row.container_identity or "",
            runtime=row.runtime or "",
            instance_id=instance,
            instance_port=row.instance_port,
            metadata=metadata,
            agent_profile=row.agent_profile or "",
            secondary_profile=dict(metadata).get(SECONDARY_PROFILE_KEY, ""),
            task_environment=task_environment.value,
            workspace_source_roots=roots.value,
            runtime_environment=environment.value,
            run_identity=environment.value.get(RUN_IDENTITY_VARIABLE, Masked("")),
            provider_session=provider.value,
            agent_command=profile.command,
            continue_arguments=profile.continue_arguments,
            history=profile.history,
        )
    )


def _profile(sources: Sources) -> Profile | None:
    row = sources.row
    named = sources.profiles.get(row.agent_profile or "")
    if named is None and row.agent_profile == DEFAULT_PROFILE and row.agent_process_uid is None:
        return OF_THE_LAUNCHER
    return named


def _lacks(read: Read[str]) -> bool:
    """An empty text is no value here: servers leave out what is empty."""
    return isinstance(read, Absent) or (isinstance(read, Got) and not read.value)
