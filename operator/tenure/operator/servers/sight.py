"""Observe: one frozen snapshot of a ControlServer, read live, as plans take it, and what acting on it needs beside."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from tenure.cluster.errors import ApiError, NamespaceTerminating, Refused
from tenure.cluster.server_ports import SecretObject, ServerCluster
from tenure.model.control_server import ControlServer, parse_control_server
from tenure.operator.clock import Clock
from tenure.operator.servers.attempts import Memory
from tenure.operator.servers.cache import ServerCache
from tenure.operator.servers.pods import BackendFacts, ServerPodFacts, read_server_pod
from tenure.operator.servers.ports import OwnedServer, ServerKey
from tenure.operator.servers.rendering import vacancy_of
from tenure.operator.servers.secrets import Custody, certifies, endpoint_of, read_custody, read_hand_over
from tenure.ownership.endpoint import ReadBudget
from tenure.plan.adoption.backend import Backends, choose, operator_as_backend
from tenure.plan.adoption.claims import renewal
from tenure.plan.adoption.state import (
    Bootstrap,
    NoSecret,
    Owner,
    Record,
    ServerPod,
    ServerSecret,
    State,
)
from tenure.plan.adoption.survival import on_windows, resolve
from tenure.plan.servers import names
from tenure.plan.servers.outdated import outdated
from tenure.storage.errors import DatabaseUnavailable
from tenure.storage.records import ControlServerRecord, Records

BOOTSTRAPS = 20
"""How many bootstrap Secrets without a pod are looked for, at most."""


@dataclass(frozen=True, slots=True)
class OwnProcess:
    """The operator as a backend: its pod, this lifetime of it, and since when."""

    pod_uid: str
    process: str
    started_at: datetime


@dataclass(frozen=True, slots=True)
class SeenPod:
    """A pod of ours with its Secrets. ``secret`` and ``custody`` None: there is none to go by."""

    facts: ServerPodFacts
    ordinal: int
    secret: SecretObject | None
    custody: Custody | None
    bootstrap: SecretObject | None
    plan: ServerPod


@dataclass(frozen=True, slots=True)
class Sight:
    """What was seen at one moment."""

    key: ServerKey
    raw: Mapping[str, Any]
    resource: ControlServer
    state: State
    pods: Mapping[str, SeenPod]
    """By UID."""
    bootstraps: Mapping[int, SecretObject]
    """By ordinal: those whose pod does not exist, as far as they were looked for."""
    backends: Backends
    backend: BackendFacts | None
    """The pod whose turn it is; None also for the operator itself."""
    hand_over: SecretObject | None
    records: Records | None
    record: ControlServerRecord | None
    refused: str = ""
    """Why Secrets may not be read."""

    @property
    def uid(self) -> str:
        return self.resource.uid

    @property
    def installation_id(self) -> str:
        return self.resource.effective_installation_id

    @property
    def budget(self) -> ReadBudget:
        """``spec.recovery``: what one read from the server may take."""
        recovery = self.resource.spec.recovery
        return ReadBudget(recovery.read_timeout_milliseconds / 1000, recovery.read_retries)

    def pod_on_record(self) -> SeenPod | None:
        """The pod of the server on record, if it exists."""
        vacant = self.record is None or self.record.vacant
        return None if vacant or self.record is None else self.pods.get(self.record.pod_uid or "")

    def of_rival(self) -> "Sight":
        """The same without the record: it is an older object's."""
        return replace(self, record=None, state=replace(self.state, record=None))

    def owned(self) -> OwnedServer | None:
        """The server that is ours in the current incarnation, by its Secret; None while there is none that can be
        reached."""
        found = renewal(self.state)
        pod = self.pods.get(found.uid) if found is not None else None
        if pod is None or pod.custody is None or not pod.facts.address:
            return None
        return owned_server(self.uid, pod, pod.custody)


def owned_server(object_uid: str, pod: SeenPod, custody: Custody) -> OwnedServer | None:
    """How to reach the server in this pod as its owner; None when the Secret's certificate is none."""
    endpoint = endpoint_of(custody, pod.facts.address)
    if endpoint is None:
        return None
    return OwnedServer(
        object_uid=object_uid,
        pod_uid=pod.facts.uid,
        pod_name=pod.facts.name,
        incarnation=custody.adopted_by,
        identity=custody.identity,
        endpoint=endpoint,
        home_dir=custody.home_dir,
        credential=custody.credential,
        rotation_id=custody.rotation_id,
    )


class Observer:
    """Gathers snapshots for passes. ``image`` is the operator's own, for servers whose spec names none."""

    def __init__(
        self,
        cluster: ServerCluster,
        cache: ServerCache,
        records_of: Callable[[str], Records | None],
        own: OwnProcess,
        image: str,
        clock: Clock,
        leading: Callable[[], bool],
    ) -> None:
        self._cluster = cluster
        self._cache = cache
        self._records_of = records_of
        self._own = own
        self._image = image
        self._clock = clock
        self._leading = leading

    async def read(self, key: ServerKey) -> Mapping[str, Any] | None:
        """The object, live; None when there is none (any more)."""
        return await self._cluster.get_control_server(key.namespace, key.name)

    async def look(self, key: ServerKey, raw: Mapping[str, Any], memory: Memory) -> Sight:
        """One snapshot. Raises ``ApiError`` when a read fails whose answer decides, and ``InvalidResource``."""
        resource = parse_control_server(raw)
        memory.deadline_seconds = resource.spec.recovery.deadline_seconds
        records = self._records_of(key.namespace)
        record, record_read = await self._record(records, resource)
        hand_over, refused = await self._hand_over(key, resource)
        pods = {} if refused else await self._pods(key, resource, record)
        self._count(resource, pods, memory)
        backends, backend = self._backends(key, resource, memory, record)
        owner = self._owner(backends, backend)
        bootstraps: dict[int, SecretObject] = {}
        if not refused and record_read:
            if record is None or record.vacant:
                bootstraps = await self._bootstraps(key, resource, pods, memory)
            elif owner is not None and record.recovered_by == owner.incarnation:
                bootstraps = await self._forgotten(key, resource, pods, memory)
        if owner is not None:
            memory.begin(owner.incarnation)
        memory.holder = owner.incarnation if owner is not None else None
        deadline = memory.deadline(self._clock.monotonic())
        state = State(
            lease=self._leading(),
            survival=resolve(
                resource.spec.agent_survival,
                windows=on_windows(resource.spec.server_pod_spec),
                durable_store=records is not None,
                secret_access=not refused,
            ),
            owner=owner,
            record=None if record is None else plan_record(record),
            record_read=record_read,
            pods=tuple(pod.plan for pod in pods.values()),
            bootstraps=tuple(
                Bootstrap(ordinal, vacancy_of(found.data)) for ordinal, found in bootstraps.items()
            ),
            next_ordinal=memory.top_ordinal + 1,
            hand_over=read_hand_over(hand_over),
            attempt=replace(memory.attempt, deadline=deadline),
        )
        return Sight(
            key=key,
            raw=raw,
            resource=resource,
            state=state,
            pods=pods,
            bootstraps=bootstraps,
            backends=backends,
            backend=backend,
            hand_over=hand_over,
            records=records,
            record=record,
            refused=refused,
        )

    async def _record(
        self, records: Records | None, resource: ControlServer
    ) -> tuple[ControlServerRecord | None, bool]:
        if records is None:
            return None, True
        try:
            return await records.servers.get(resource.effective_installation_id), True
        except DatabaseUnavailable:
            return None, False

    async def _hand_over(self, key: ServerKey, resource: ControlServer) -> tuple[SecretObject | None, str]:
        """The hand-over Secret if it is ours, and why it may not be read, in the server's words."""
        try:
            found = await self._cluster.get_secret(key.namespace, names.handover_name(key.name))
        except Refused as error:
            return None, error.message or "reading Secrets is refused"
        return (found if found is not None and found.owner_uid == resource.uid else None), ""

    async def _pods(
        self, key: ServerKey, resource: ControlServer, record: ControlServerRecord | None
    ) -> dict[str, SeenPod]:
        known = {pod.name: pod.uid for pod in self._cache.pods_of(resource.uid)}
        told = resource.status.pod.name if resource.status.pod is not None else None
        for name in (record.credential_secret if record is not None else None, told):
            if name and name not in known and names.ordinal(resource, name):
                known[name] = ""
        seen = {}
        for name, uid in sorted(known.items()):
            pod = await self._pod(key, resource, name, uid)
            if pod is not None:
                seen[pod.facts.uid] = pod
        return dict(sorted(seen.items(), key=lambda item: item[1].ordinal))

    async def _pod(self, key: ServerKey, resource: ControlServer, name: str, uid: str) -> SeenPod | None:
        raw = await self._cluster.get_pod(key.namespace, name)
        if raw is None:
            self._cache.drop_pod_uid(uid)
            return None
        facts = read_server_pod(raw)
        self._cache.put_pod(raw, found=True)
        ordinal = names.ordinal(resource, name)
        if facts.owner_uid != resource.uid or ordinal is None:
            return None
        secret, unread = await self._secret(key.namespace, name)
        # A Secret of this name that another pod of this name left: it is being collected.
        mine = secret if secret is not None and secret.owner_uid == facts.uid else None
        custody = read_custody(mine.data) if mine is not None else None
        bootstrap, unseen = await self._secret(key.namespace, names.bootstrap_name(name))
        if bootstrap is not None and bootstrap.owner_uid != resource.uid:
            bootstrap = None
        found: ServerSecret | NoSecret = NoSecret.UNAVAILABLE
        if custody is not None and certifies(custody.certificate, custody.server_name):
            found = custody.seen()
        plan = ServerPod(
            uid=facts.uid,
            ordinal=ordinal,
            vacancy=facts.vacancy,
            phase=facts.phase,
            over=facts.over,
            terminating=facts.terminating,
            # Without the answer nobody can tell a nonce that is still to be handed in from one that has gone.
            secret=NoSecret.UNREAD if unread or (unseen and found is NoSecret.UNAVAILABLE) else found,
            bootstrap=bootstrap is not None,
            outdated=outdated(resource, self._image, facts.annotations),
        )
        return SeenPod(facts, ordinal, mine, custody, bootstrap, plan)

    async def _secret(self, namespace: str, name: str) -> tuple[SecretObject | None, bool]:
        """The Secret, and whether it could not be read."""
        try:
            return await self._cluster.get_secret(namespace, name), False
        except NamespaceTerminating:
            return None, True
        except ApiError:
            return None, True

    async def _bootstraps(
        self, key: ServerKey, resource: ControlServer, pods: dict[str, SeenPod], memory: Memory
    ) -> dict[int, SecretObject]:
        """Bootstrap Secrets from the first free ordinal on. A pod whose creation had no answer stands beside one."""
        found: dict[int, SecretObject] = {}
        for ordinal in range(memory.top_ordinal + 1, memory.top_ordinal + 1 + BOOTSTRAPS):
            name = names.pod_name(resource, ordinal)
            secret = await self._cluster.get_secret(key.namespace, names.bootstrap_name(name))
            if secret is None or secret.owner_uid != resource.uid:
                break
            pod = await self._pod(key, resource, name, "")
            if pod is None:
                found[ordinal] = secret
            else:
                pods[pod.facts.uid] = pod
        self._count(resource, pods, memory)
        return {ordinal: secret for ordinal, secret in found.items() if ordinal > memory.top_ordinal}

    async def _forgotten(
        self, key: ServerKey, resource: ControlServer, pods: Mapping[str, SeenPod], memory: Memory
    ) -> dict[int, SecretObject]:
        """Bootstrap Secrets that were left by operators that died, or by pods that went before theirs was deleted.
        Looked for until there is none, and again after another pod: by name, since Secrets are not listed."""
        if memory.swept == memory.top_ordinal:
            return {}
        here = {pod.ordinal for pod in pods.values()}
        found: dict[int, SecretObject] = {}
        top, done = memory.top_ordinal, not any(pod.bootstrap for pod in pods.values())
        # One above the highest may have been prepared for a pod that was then not needed.
        for ordinal in sorted({*range(max(1, top - BOOTSTRAPS), top + 2)} - here):
            name = names.bootstrap_name(names.pod_name(resource, ordinal))
            secret, unread = await self._secret(key.namespace, name)
            if secret is not None and secret.owner_uid == resource.uid:
                found[ordinal] = secret
            done = done and not unread
        if done and not found:
            memory.swept = top
        return found

    @staticmethod
    def _count(resource: ControlServer, pods: Mapping[str, SeenPod], memory: Memory) -> None:
        told = resource.status.pod.ordinal if resource.status.pod is not None else 0
        memory.top_ordinal = max(memory.top_ordinal, told, *(pod.ordinal for pod in pods.values()), 0)

    def _backends(
        self, key: ServerKey, resource: ControlServer, memory: Memory, record: ControlServerRecord | None
    ) -> tuple[Backends, BackendFacts | None]:
        wanted = resource.spec.backend
        if wanted is None:
            own = self._own
            return operator_as_backend(own.pod_uid, own.process, own.started_at), None
        facts = self._cache.backends(key.namespace, wanted.selector)
        told = resource.status.backend.incarnation if resource.status.backend is not None else None
        holder = memory.holder or (record.adopted_by if record is not None else None) or told
        found = choose(tuple(each.seen(wanted.container) for each in facts), holder, wanted.handover)
        current = found.current
        return found, next((f for f in facts if current is not None and f.uid == current.uid), None)

    @staticmethod
    def _owner(backends: Backends, facts: BackendFacts | None) -> Owner | None:
        current = backends.current
        if current is None or current.incarnation is None:
            return None
        if facts is None:
            return Owner(current.incarnation, current.uid, itself=True)
        return Owner(current.incarnation, current.uid, facts.gate)


def plan_record(row: ControlServerRecord) -> Record:
    """The row as plans take it."""
    return Record(
        identity=row.server_identity,
        pod_uid=row.pod_uid,
        rotation_id=row.rotation_id or 0,
        rotation_confirmed=row.rotation_confirmed,
        adopted_by=row.adopted_by,
        recovered_by=row.recovered_by,
        survival=row.survival_effective,
    )
