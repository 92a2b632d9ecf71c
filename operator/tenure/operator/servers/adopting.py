"""One attempt to adopt a server, from the first contact to the verdict; and the handshake with a fresh one.

Each runs to its end in a task of its own. ``tenure.plan.adoption.gates`` says what is asked next; a crash between any
two questions leaves what the next attempt goes on from, and a rotation that is asked for again gives the same answer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

from tenure.cluster.errors import AlreadyExists, ApiError, Conflict, NotFound
from tenure.cluster.server_ports import NewSecret, SecretObject, ServerCluster
from tenure.model.adoption import AdoptionReason
from tenure.model.masked import Masked
from tenure.model.records import SurvivalEffective
from tenure.model.server_status import AdjustmentStatus
from tenure.operator.servers.ports import ServerSaid
from tenure.operator.servers.secrets import Custody, endpoint_of, read_custody, url_of
from tenure.ownership.client import ControlClient
from tenure.ownership.endpoint import Endpoint, ReadBudget
from tenure.ownership.errors import (
    ControlError,
    Doubt,
    ForeignServer,
    NoAnswer,
    NotAccepted,
    ShuttingDown,
)
from tenure.plan.adoption.gates import (
    Advertised,
    Ask,
    Contact,
    Deadline,
    Failure,
    Granted,
    HomeDirectory,
    LookAgain,
    Stored,
    Survivor,
    Verdict,
    next_ask,
    next_ask_of_survivor,
    verdict_of,
)
from tenure.protocol.errors import CredentialUnavailable
from tenure.protocol.messages import Details
from tenure.protocol.proof import usable
from tenure.storage.records import DatabaseUnavailable, RecordMoved, Records, ServerFacts

PAUSE = 0.2
"""Seconds before a question that had no answer is put again."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server that was left, as it is on record."""

    namespace: str
    installation_id: str
    pod_uid: str
    pod_name: str
    address: str
    recorded_identity: str
    adopted_by: str | None
    """Whose the record is: for the compare-and-set."""
    secret: SecretObject | None
    custody: Custody | None
    labels: Mapping[str, str]
    owner: Mapping[str, str | bool]
    """The owner reference of the Secret: the pod."""


@dataclass(slots=True)
class Adoption:
    """One attempt. ``run`` gives what became of it; ``credential`` is the newest that it knows."""

    cluster: ServerCluster
    records: Records
    target: Target
    incarnation: str
    survival: SurvivalEffective
    budget: ReadBudget
    deadline: Callable[[], Deadline]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    credential: Masked | None = field(default=None, repr=False)
    said: ServerSaid = field(default_factory=ServerSaid)
    _custody: Custody | None = field(default=None, repr=False)
    _secret: SecretObject | None = field(default=None, repr=False)

    async def run(self) -> Verdict | LookAgain:
        """Ask until there is a verdict."""
        endpoint = _endpoint(self.target)
        if endpoint is None or self.target.custody is None:
            # Without the certificate nobody can be spoken to in a way that proves who answers.
            return verdict_of(AdoptionReason.CREDENTIAL_UNAVAILABLE)
        self._custody, self._secret = self.target.custody, self.target.secret
        self.credential = self._custody.credential
        contact = _contact(self.target, self._custody)
        asked: Ask | None = None
        async with _client(self.target, self._custody, endpoint, self.budget) as client:
            while True:
                ask = next_ask(contact, self.deadline())
                if isinstance(ask, Verdict | LookAgain):
                    return ask
                if ask is asked:
                    await self.sleep(PAUSE)
                asked = ask
                contact = await self._ask(client, contact, ask)

    async def _ask(self, client: ControlClient, contact: Contact, ask: Ask) -> Contact:
        match ask:
            case Ask.IDENTITY | Ask.PROOF:
                return await _acquaint(client, contact, ask)
            case Ask.ROTATION:
                return replace(contact, rotation=await self._rotate(client))
            case Ask.DETAILS:
                return replace(contact, details=await self._details(client))
            case Ask.STORE_SECRET:
                return replace(contact, secret=await self._store_secret(contact))
            case Ask.STORE_RECORD:
                return replace(contact, record=await self._store_record(contact))

    async def _rotate(self, client: ControlClient) -> Granted | Failure:
        try:
            rotated = await client.rotate()
        except (ControlError, CredentialUnavailable) as error:
            return failure_of(error)
        self.credential = rotated.credential
        assert self._custody is not None
        self._custody = self._custody.rotated(rotated.credential, rotated.rotation_id, self.incarnation)
        client.use(rotated.credential)
        return Granted(rotated.rotation_id)

    async def _details(self, client: ControlClient) -> HomeDirectory | Failure:
        try:
            details = await client.details()
        except (ControlError, CredentialUnavailable) as error:
            return failure_of(error)
        assert self._custody is not None
        self._custody = replace(self._custody, diagnostic_output=details.diagnostic_log_path)
        self.said = said_of(self._custody.capabilities, details)
        return HomeDirectory(details.home_dir)

    async def _store_secret(self, contact: Contact) -> Stored:
        assert self._custody is not None
        assert self._secret is not None
        assert isinstance(contact.identity, Advertised)
        custody = replace(self._custody, capabilities=tuple(sorted(contact.identity.capabilities)))
        self._custody, target = custody, self.target
        new = NewSecret(target.pod_name, target.labels, target.owner, custody.to_data())
        try:
            self._secret = await self.cluster.replace_secret(
                target.namespace, new, uid=self._secret.uid, resource_version=self._secret.resource_version
            )
            return Stored.DONE
        except NotFound:
            return Stored.MOVED
        except Conflict:
            return await self._compare(custody)
        except ApiError:
            return Stored.FAILED

    async def _compare(self, custody: Custody) -> Stored:
        """Somebody has written: we, with an answer that was lost; or another, who may have changed a label only."""
        assert self._secret is not None
        try:
            found = await self.cluster.get_secret(self.target.namespace, self.target.pod_name)
        except ApiError:
            return Stored.FAILED
        if found is None or found.uid != self._secret.uid:
            return Stored.MOVED
        stored = read_custody(found.data)
        if stored is not None and stored.credential == custody.credential:
            return Stored.DONE if stored.adopted_by == custody.adopted_by else Stored.MOVED
        if stored != self.target.custody:
            return Stored.MOVED
        self._secret = found
        return Stored.FAILED

    async def _store_record(self, contact: Contact) -> Stored:
        assert self._custody is not None
        assert isinstance(contact.identity, Advertised)
        facts = facts_of(self._custody, self.target.pod_uid, self.target.pod_name, self.target.address)
        try:
            await self.records.servers.record(
                self.target.installation_id,
                facts,
                adopted_by=self.target.adopted_by,
                incarnation=self.incarnation,
                survival=self.survival,
            )
        except RecordMoved:
            return Stored.MOVED
        except DatabaseUnavailable:
            return Stored.FAILED
        return Stored.DONE


async def dismiss(target: Target, budget: ReadBudget) -> tuple[Survivor, bool]:
    """Survival is off: what this server is, and, if it proves to be ours, whether it took the order to shut down."""
    endpoint = _endpoint(target)
    if endpoint is None or target.custody is None:
        return Survivor.LEAVE_ALONE, False
    contact = _contact(target, target.custody)
    async with _client(target, target.custody, endpoint, budget) as client:
        while isinstance(ask := next_ask_of_survivor(contact), Ask):
            contact = await _acquaint(client, contact, ask)
        if ask is not Survivor.STOP:
            return ask, False
        return ask, await order_shutdown(client)


async def order_shutdown(client: ControlClient) -> bool:
    """The ownership shutdown, with the client's retries. One that nobody answers any more counts as stopped only when
    its pod says so."""
    try:
        await client.shutdown()
    except (ControlError, CredentialUnavailable):
        return False
    return True


async def _acquaint(client: ControlClient, contact: Contact, ask: Ask) -> Contact:
    try:
        if ask is Ask.IDENTITY:
            found = await client.identity()
            told = Advertised(found.server_identity, frozenset(found.capabilities))
            return replace(contact, identity=told)
        await client.prove()
        return replace(contact, proven=True)
    except (ControlError, CredentialUnavailable) as error:
        failure = failure_of(error)
    if ask is Ask.IDENTITY:
        return replace(contact, identity=failure)
    return replace(contact, proven=failure)


def failure_of(error: Exception) -> Failure:
    """What an error is, as gates take it."""
    match error:
        case NoAnswer():
            return Failure.NO_ANSWER
        case ForeignServer(doubt=Doubt.CERTIFICATE):
            return Failure.NO_ANSWER
        case ShuttingDown():
            return Failure.SHUTTING_DOWN
        case NotAccepted():
            return Failure.NOT_ACCEPTED
        case _:
            return Failure.BAD_ANSWER


def facts_of(custody: Custody, pod_uid: str, pod_name: str, address: str) -> ServerFacts:
    """What the record keeps of a server."""
    return ServerFacts(
        server_identity=custody.identity,
        endpoint=url_of(address, custody.port),
        pod_uid=pod_uid,
        credential_secret=pod_name,
        capabilities=custody.capabilities,
        unowned_period_ms=max(custody.unowned_period_ms, 1),
        rotation_id=custody.rotation_id or None,
        rotation_confirmed=custody.rotation_id == 0,
        diagnostic_output=custody.diagnostic_output or None,
    )


def said_of(capabilities: tuple[str, ...], details: Details) -> ServerSaid:
    """What a server has told of itself, for the status."""
    return ServerSaid(
        capabilities=capabilities,
        diagnostic_output=details.diagnostic_log_path,
        adjustments=tuple(
            AdjustmentStatus(
                setting=each.setting,
                requested_milliseconds=each.requested_ms,
                effective_milliseconds=each.effective_ms,
                reason=each.reason,
            )
            for each in details.adjustments
        ),
    )


def _contact(target: Target, custody: Custody) -> Contact:
    return Contact(
        recorded_identity=target.recorded_identity,
        home_dir=custody.home_dir,
        credential_usable=usable(custody.credential) and custody.identity == target.recorded_identity,
    )


def _endpoint(target: Target) -> Endpoint | None:
    if target.custody is None or target.secret is None or not target.address:
        return None
    return endpoint_of(target.custody, target.address)


def _client(target: Target, custody: Custody, endpoint: Endpoint, budget: ReadBudget) -> ControlClient:
    return ControlClient(
        endpoint,
        credential=custody.credential if usable(custody.credential) else None,
        home_dir=custody.home_dir,
        expected_identity=target.recorded_identity,
        budget=budget,
    )


@dataclass(slots=True)
class Greeting:
    """The handshake with a fresh server: nonce for credential, and the credential durable before anything else."""

    cluster: ServerCluster
    namespace: str
    pod_name: str
    labels: Mapping[str, str]
    owner: Mapping[str, str | bool]
    endpoint: Endpoint
    blank: Custody
    """All but the credential and what the server tells."""
    nonce: Masked
    budget: ReadBudget
    patience: float = 60.0
    """Seconds in which the program in the container may come up."""
    over: Callable[[], bool] = lambda: False
    """Whether its pod is known to have ended, or to be about to: nobody comes up there any more."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    clock: Callable[[], float] = field(default_factory=lambda: asyncio.get_running_loop().time)

    async def run(self) -> bool:
        """True: the server is ours, and its Secret says so. False: its nonce was used, it is not what was made, or it
        ended before it answered.

        Raises ``ControlError`` when the server did not come up in time, and ``ApiError`` when its Secret could not be
        stored: the credential is lost then, and the next handshake finds a nonce that was used."""
        limit = self.clock() + self.patience
        async with ControlClient(
            self.endpoint,
            credential=None,
            home_dir=self.blank.home_dir,
            expected_identity=None,
            budget=self.budget,
        ) as client:
            while True:
                try:
                    told = await client.identity()
                    break
                except ControlError:
                    if self.over():
                        return False
                    if self.clock() >= limit:
                        raise
                await self.sleep(PAUSE)
            if told.server_identity != self.blank.identity:
                return False
            try:
                credential = await client.handshake(self.nonce)
            except NotAccepted:
                return False
            custody = replace(
                self.blank,
                credential=credential,
                capabilities=tuple(sorted(told.capabilities)),
                unowned_period_ms=told.unowned_period_ms,
            )
            await self._store(custody)
            return True

    async def _store(self, custody: Custody) -> None:
        limit = self.clock() + self.patience
        while True:
            new = NewSecret(self.pod_name, self.labels, self.owner, custody.to_data())
            try:
                await self.cluster.create_secret(self.namespace, new)
                return
            except AlreadyExists:
                # Ours, its answer lost; or one that a pod of this name has left, which is being collected.
                if await self._is_stored(custody):
                    return
                if self.clock() >= limit:
                    raise
            except ApiError:
                if self.clock() >= limit:
                    raise
            await self.sleep(PAUSE)

    async def _is_stored(self, custody: Custody) -> bool:
        try:
            found = await self.cluster.get_secret(self.namespace, self.pod_name)
        except ApiError:
            return False
        stored = read_custody(found.data) if found is not None else None
        mine = found is not None and found.owner_uid == self.owner.get("uid")
        return mine and stored is not None and stored.credential == custody.credential
