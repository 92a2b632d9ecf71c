"""What the operator knows of control servers: the objects, their pods, and the pods of backends, as last seen.

It says whom to look at and when; a pass asks the API server before it acts, so absence from here is no evidence.
"""

import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tenure.model.control_server import parse_control_server
from tenure.model.errors import UnreadableObject
from tenure.model.pods import AGENT_ROLE
from tenure.model.selector import Selector
from tenure.operator.servers.pods import (
    BackendFacts,
    ServerPodFacts,
    read_backend,
    read_server_pod,
    role_of,
)
from tenure.operator.servers.ports import ServerKey
from tenure.plan.servers.names import BACKEND_ROLE

log = logging.getLogger(__name__)

TOMBSTONES = 20_000
T = TypeVar("T")


@dataclass(slots=True)
class _Entry(Generic[T]):
    version: int
    value: T
    seen: float


class _Store(Generic[T]):
    """Values by UID, the newest version of each; one that was removed does not come back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.entries: dict[str, _Entry[T]] = {}
        self._gone: OrderedDict[str, int] = OrderedDict()
        """With the version at which it left, or 0 when only its absence was seen."""

    def put(self, uid: str, version: int, value: T) -> bool:
        known = self.entries.get(uid)
        if uid in self._gone:
            return False
        if known is not None:
            known.seen = self._clock()
            if 0 < version <= known.version:
                return False
        self.entries[uid] = _Entry(version, value, self._clock())
        return True

    def drop(self, uid: str, left_at: int = 0) -> T | None:
        self._gone[uid] = max(left_at, self._gone.get(uid, 0))
        while len(self._gone) > TOMBSTONES:
            self._gone.popitem(last=False)
        known = self.entries.pop(uid, None)
        return None if known is None else known.value

    def revive(self, uid: str, version: int) -> None:
        """It was seen alive in this version. The answer to a write may be older than the watch's word of its deletion:
        that one stands."""
        if not self._gone.get(uid, 0) > version > 0:
            self._gone.pop(uid, None)

    def knows(self, uid: str, version: int) -> bool:
        known = self.entries.get(uid)
        return uid in self._gone or (known is not None and known.version >= version)

    def missing(self, present: Collection[str], before: float) -> list[str]:
        return [uid for uid, e in self.entries.items() if e.seen < before and uid not in present]

    def values(self) -> Iterator[T]:
        return (entry.value for entry in list(self.entries.values()))


@dataclass(frozen=True, slots=True)
class _Server:
    key: ServerKey
    uid: str
    body: bytes
    selector: Selector | None
    installation_id: str
    """Empty for an object that is not understood."""
    created_at: str


class ServerCache:
    """``on_change(key)`` is called after every put or drop that changed what is known of ``key``."""

    def __init__(
        self,
        on_change: Callable[[ServerKey], None] = lambda key: None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.on_change = on_change
        self._servers: _Store[_Server] = _Store(clock)
        self._pods: _Store[ServerPodFacts] = _Store(clock)
        self._backends: _Store[BackendFacts] = _Store(clock)

    # --- reading

    def keys(self) -> frozenset[ServerKey]:
        """Every name of which an object or a pod is known."""
        owners = {ServerKey(p.namespace, p.owner_name) for p in self._pods.values() if p.owner_name}
        return frozenset(server.key for server in self._servers.values()) | owners

    def control_server(self, key: ServerKey) -> dict[str, Any] | None:
        """The object as last seen, a fresh copy; None when there is none."""
        found = next((s for s in self._servers.values() if s.key == key), None)
        if found is None:
            return None
        body: dict[str, Any] = json.loads(found.body)
        return body

    def rival(self, key: ServerKey, uid: str) -> str:
        """The name of an older ControlServer of the same installation, which has the only record that there is for it;
        empty when there is none."""
        mine = self._servers.entries.get(uid)
        if mine is None or not mine.value.installation_id:
            return ""
        older = [
            (other.created_at, other.uid, other.key.name)
            for other in self._servers.values()
            if other.key.namespace == key.namespace
            and other.installation_id == mine.value.installation_id
            and (other.created_at, other.uid) < (mine.value.created_at, uid)
        ]
        return min(older)[2] if older else ""

    def installation_of(self, uid: str) -> str | None:
        """The installation of the ControlServer with this UID; None: it is not known, or not understood."""
        known = self._servers.entries.get(uid)
        return (known.value.installation_id or None) if known is not None else None

    def pods_of(self, owner_uid: str) -> tuple[ServerPodFacts, ...]:
        """The pods that this very object controls."""
        return tuple(pod for pod in self._pods.values() if pod.owner_uid == owner_uid)

    def backends(self, namespace: str, selector: Selector) -> tuple[BackendFacts, ...]:
        """The pods of backends that the selector matches."""
        return tuple(
            b for b in self._backends.values() if b.namespace == namespace and selector.matches(b.labels)
        )

    def __len__(self) -> int:
        return sum(len(store.entries) for store in (self._servers, self._pods, self._backends))

    # --- ControlServers

    def put_control_server(self, raw: Mapping[str, Any], *, wake: bool = True) -> bool:
        """Take in an object as the API server has it; True if it was news. ``wake`` false: ``on_change`` is not
        called, for a pass that knows what it has just written itself."""
        read = _read(raw)
        if read is None or not self._servers.put(read[0].uid, read[1], read[0]):
            return False
        for uid, entry in list(self._servers.entries.items()):
            if uid != read[0].uid and entry.value.key == read[0].key:
                self._servers.drop(uid)
        if wake:
            self.on_change(read[0].key)
        return True

    def drop_control_server(self, raw: Mapping[str, Any]) -> bool:
        """The API server no longer has it; True if that was news."""
        return self.drop_control_server_uid(str(_meta(raw).get("uid", "")))

    def drop_control_server_uid(self, uid: str) -> bool:
        """The same, of one that a live GET or a list did not find."""
        known = self._servers.drop(uid)
        if known is not None:
            self.on_change(known.key)
        return known is not None

    def drop_missing_control_servers(self, present: Collection[str], before: float) -> int:
        """Drop what a complete list that was asked for at ``before`` did not show."""
        return sum(self.drop_control_server_uid(uid) for uid in self._servers.missing(present, before))

    def knows_control_server(self, raw: Mapping[str, Any]) -> bool:
        """Whether the cache is as new as ``raw``, of which only the metadata is looked at."""
        meta = _meta(raw)
        return self._servers.knows(str(meta.get("uid", "")), _version(meta))

    # --- pods

    def put_pod(self, raw: Mapping[str, Any], *, found: bool = False) -> bool:
        """Take in a pod; True if it was news. Those of other roles are not kept. ``found``: a live GET has just shown
        it, which undoes what was concluded from its absence."""
        role = role_of(raw)
        if role == AGENT_ROLE and str(_meta(raw).get("uid", "")) not in self._backends.entries:
            return False
        try:
            if role == BACKEND_ROLE:
                return self._put_backend(read_backend(raw), _version(_meta(raw)), found)
            pod = read_server_pod(raw)
        except UnreadableObject as error:
            log.warning("an object was left out: %s", error)
            return False
        # By its owner, not by its label: a pod without our label is still ours.
        if not pod.owner_uid:
            return self.drop_pod(raw) if self._backends.entries.get(pod.uid) else False
        if found:
            self._pods.revive(pod.uid, _version(_meta(raw)))
        news = self._pods.put(pod.uid, _version(_meta(raw)), pod)
        if news:
            self.on_change(ServerKey(pod.namespace, pod.owner_name))
        return news

    def _put_backend(self, pod: BackendFacts, version: int, found: bool) -> bool:
        if found:
            self._backends.revive(pod.uid, version)
        news = self._backends.put(pod.uid, version, pod)
        if news:
            self._tell_backend(pod)
        return news

    def drop_pod(self, raw: Mapping[str, Any]) -> bool:
        """The API server no longer has this pod, or it has lost its role; True if that was news."""
        return self._drop_pod(str(_meta(raw).get("uid", "")), _version(_meta(raw)))

    def drop_pod_uid(self, uid: str) -> bool:
        """The same, of a pod that a live GET or a list did not find."""
        return self._drop_pod(uid, 0)

    def _drop_pod(self, uid: str, left_at: int) -> bool:
        pod = self._pods.drop(uid, left_at) if uid in self._pods.entries else None
        if pod is not None:
            self.on_change(ServerKey(pod.namespace, pod.owner_name))
        backend = self._backends.drop(uid, left_at) if uid in self._backends.entries else None
        if backend is not None:
            self._tell_backend(backend)
        return pod is not None or backend is not None

    def drop_missing_pods(self, present: Collection[str], before: float) -> int:
        """Drop what a complete list that was asked for at ``before`` did not show."""
        stores = (self._pods, self._backends)
        return sum(self.drop_pod_uid(uid) for store in stores for uid in store.missing(present, before))

    def knows_pod(self, raw: Mapping[str, Any]) -> bool:
        """Whether the cache is as new as ``raw``, of which only the metadata is looked at."""
        meta = _meta(raw)
        uid, version = str(meta.get("uid", "")), _version(meta)
        if role_of(raw) == BACKEND_ROLE:
            return self._backends.knows(uid, version)
        try:
            return not read_server_pod(raw).owner_uid or self._pods.knows(uid, version)
        except UnreadableObject:
            return True

    def _tell_backend(self, pod: BackendFacts) -> None:
        for server in self._servers.values():
            if server.key.namespace != pod.namespace or server.selector is None:
                continue
            # A pod whose labels have changed may have been somebody's: everybody looks.
            self.on_change(server.key)


def _read(raw: Mapping[str, Any]) -> tuple[_Server, int] | None:
    meta = _meta(raw)
    namespace, name, uid = (meta.get(field) for field in ("namespace", "name", "uid"))
    if not (isinstance(namespace, str) and isinstance(name, str) and isinstance(uid, str)):
        log.warning("an object was left out: a ControlServer without name, namespace or UID")
        return None
    body = dict(raw)
    body["metadata"] = {key: value for key, value in meta.items() if key != "managedFields"}
    selector, installation_id = None, ""
    try:
        server = parse_control_server(raw)
        installation_id = server.effective_installation_id
        selector = server.spec.backend.selector if server.spec.backend is not None else None
    except UnreadableObject:
        pass
    packed = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    created_at = str(meta.get("creationTimestamp") or "")
    key = ServerKey(namespace, name)
    return _Server(key, uid, packed, selector, installation_id, created_at), _version(meta)


def _meta(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    meta = raw.get("metadata")
    return meta if isinstance(meta, Mapping) else {}


def _version(meta: Mapping[str, Any]) -> int:
    value = meta.get("resourceVersion")
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else 0
