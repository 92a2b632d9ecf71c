"""One ``coordination.k8s.io/v1`` Lease: reading it, and the compare-and-set writes that claim, renew and
release it.

Times in a Lease are for people. Whether somebody else's claim is over is judged by our own monotonic clock:
the Lease has to stay unchanged, under our eyes, for as long as its holder asked for.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto

from tenure.cluster.calls import LEASES, Verb
from tenure.cluster.client import KubernetesClient
from tenure.cluster.errors import AlreadyExists, Conflict, NotFound
from tenure.cluster.ports import Json
from tenure.model.errors import TenureError


class LeaseLost(TenureError):
    """Somebody else holds the Lease."""


class Standing(Enum):
    """What a look at the Lease says."""

    FREE = auto()
    """Absent, or released by its holder."""
    OURS = auto()
    HELD = auto()
    """Somebody else's, and it may still be in force."""
    EXPIRED = auto()
    """Somebody else's, unchanged for longer than its duration."""


@dataclass(frozen=True, slots=True)
class _Seen:
    raw: Json
    holder: str
    seconds: float | None

    @property
    def version(self) -> tuple[str, str]:
        meta = self.raw["metadata"]
        return str(meta.get("uid")), str(meta.get("resourceVersion"))


class LeaseSlot:
    """A Lease by namespace and name, as one contender (``identity``, unique for a process) deals with it.

    Every method raises ``ApiError`` when the API server does not carry out a call; ``limit`` is seconds for
    each call.
    """

    def __init__(
        self,
        client: KubernetesClient,
        *,
        namespace: str,
        name: str,
        identity: str,
        seconds: int,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.namespace = namespace
        self.touched = False
        """A claim was sent and not released since: the Lease may be ours, whatever the answer was."""
        self._client = client
        self._name = name
        self._identity = identity
        self._seconds = seconds
        self._monotonic = monotonic
        self._seen: _Seen | None = None
        self._in_force_until = 0.0

    @property
    def holder(self) -> str:
        """Who held it when it was last read; empty when nobody did."""
        return self._seen.holder if self._seen is not None else ""

    @property
    def wait(self) -> float:
        """Seconds until somebody else's claim is over, if nothing changes; 0 when it is."""
        return max(0.0, self._in_force_until - self._monotonic())

    async def look(self, limit: float) -> Standing:
        """Read it."""
        try:
            raw = await self._client.request(
                Verb.GET, LEASES, namespace=self.namespace, name=self._name, time_limit=limit
            )
        except NotFound:
            # Deleting the object does not end its holder's claim: that runs out as ever.
            self._seen = None
            return Standing.HELD if self.wait else Standing.FREE
        return self._note(raw)

    async def claim(self, limit: float) -> None:
        """Make it ours, after a ``look`` that said it may be.

        Raises ``LeaseLost`` when somebody else was faster.
        """
        self.touched = True
        try:
            await (self._create(limit) if self._seen is None else self._write(self._seen, limit, claim=True))
        except (Conflict, AlreadyExists):
            raise LeaseLost(f"somebody else was faster in {self.namespace}") from None

    async def renew(self, limit: float) -> None:
        """Say that we are still there. Raises ``LeaseLost`` when it is not ours any more.

        An earlier renewal of unknown outcome may have changed the version, and a person may have edited or
        deleted the object: so a conflict is settled by reading.
        """
        if self._seen is not None:
            try:
                return await self._write(self._seen, limit)
            except (Conflict, NotFound):
                pass
        match await self.look(limit):
            case Standing.OURS if self._seen is not None:
                await self._write(self._seen, limit)
            case Standing.FREE if self._seen is None:
                await self.claim(limit)
            case _:
                raise LeaseLost(f"the Lease in {self.namespace} is held by {self.holder or 'nobody'}")
        return None

    async def release(self, limit: float) -> None:
        """Give it up if it is ours, so that the next one need not wait."""
        if await self.look(limit) is Standing.OURS and self._seen is not None:
            await self._write(self._seen, limit, release=True)
        self.touched = False

    async def _create(self, limit: float) -> None:
        now = _micro_time()
        body: Json = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self.namespace},
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": self._seconds,
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": 0,
            },
        }
        self._note(
            await self._client.request(
                Verb.CREATE, LEASES, namespace=self.namespace, body=body, time_limit=limit
            )
        )

    async def _write(self, seen: _Seen, limit: float, *, claim: bool = False, release: bool = False) -> None:
        meta = {k: v for k, v in seen.raw["metadata"].items() if k != "managedFields"}
        spec, now = dict(seen.raw.get("spec") or {}), _micro_time()
        spec |= {
            "holderIdentity": "" if release else self._identity,
            "leaseDurationSeconds": 1 if release else self._seconds,
            "renewTime": now,
        }
        if claim:
            spec |= {"acquireTime": now, "leaseTransitions": _count(spec.get("leaseTransitions")) + 1}
        # With UID and resource version: the API server refuses it if anything changed since it was read.
        raw = await self._client.request(
            Verb.UPDATE,
            LEASES,
            namespace=self.namespace,
            name=self._name,
            body={**seen.raw, "metadata": meta, "spec": spec},
            time_limit=limit,
        )
        self._note(raw)

    def _note(self, raw: Json) -> Standing:
        spec = raw.get("spec") or {}
        duration = spec.get("leaseDurationSeconds")
        seen = _Seen(
            raw,
            str(spec.get("holderIdentity") or ""),
            duration if isinstance(duration, int) and duration > 0 else None,
        )
        changed = self._seen is None or seen.version != self._seen.version
        self._seen = seen
        if seen.holder in ("", self._identity):
            self._in_force_until = 0.0
            return Standing.OURS if seen.holder else Standing.FREE
        if changed:
            self._in_force_until = self._monotonic() + (seen.seconds or self._seconds)
        return Standing.HELD if self.wait else Standing.EXPIRED


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def _micro_time() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
