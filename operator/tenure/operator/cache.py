"""What the operator knows of the cluster: the AgentProcesses and the pods of agents, as last seen.

Fed by watch events, by the periodic sweep, and by the answers to the operator's own writes, so that a pass
never acts on an echo older than what it wrote itself. Everything here runs in the operator's main loop;
nothing is shared with kopf's thread. Absence from this cache is no evidence: a pass asks the API server
before it acts on one.

Memory: resources are kept as compact JSON and parsed when a pass asks (some 3 KB each instead of some 15 KB
as Python objects); of a pod only its ``PodView`` is kept.
"""

import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tenure.model.errors import UnreadableObject
from tenure.model.pods import AgentContainer, PodView, read_pod

log = logging.getLogger(__name__)

TOMBSTONES = 20_000
"""How many UIDs of removed objects are remembered, so that a late event cannot bring one back."""
TOMBSTONE_SECONDS = 900.0
"""For how long; a watch event that is later than this was refused by the API server long before (410
Gone).
"""
DEPARTED_PODS = 10_000
"""How many departed pods are kept when nobody forgets them; the oldest go first."""

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True, slots=True, order=True)
class ObjectKey:
    """An AgentProcess by name, whichever object of that name it is at the moment."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(slots=True)
class _Process:
    uid: str
    version: int
    body: bytes
    seen: float


@dataclass(slots=True)
class _Pod:
    view: PodView
    version: int
    seen: float
    left_at: int = 0
    """Version of the event by which it left; 0 when only its absence was seen."""


class ObjectCache:
    """AgentProcesses and agents' pods, keyed by the name of the AgentProcess.

    ``on_change(key)`` is called after every put or drop that changed what is known of ``key``; ``clock`` is
    monotonic, in seconds.
    """

    def __init__(
        self,
        on_change: Callable[[ObjectKey], None] = lambda key: None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.on_change = on_change
        self._clock = clock
        self._processes: dict[ObjectKey, _Process] = {}
        self._pods: dict[str, _Pod] = {}
        self._owned: dict[ObjectKey, dict[str, None]] = {}
        self._departed: OrderedDict[str, None] = OrderedDict()
        self._tombstones: OrderedDict[str, float] = OrderedDict()

    # --- reading

    def agent_process(self, key: ObjectKey) -> dict[str, Any] | None:
        """The resource as last seen: a fresh copy, without managed fields; None when there is none."""
        found = self._processes.get(key)
        if found is None:
            return None
        body: dict[str, Any] = json.loads(found.body)
        return body

    def agent_process_uid(self, key: ObjectKey) -> str:
        """The UID of the resource as last seen, or an empty string."""
        found = self._processes.get(key)
        return found.uid if found else ""

    def pods_of(self, key: ObjectKey) -> tuple[PodView, ...]:
        """Every pod, departed ones included, that an AgentProcess of this name controls or controlled.

        Pods of an *earlier* object of the same name are among them: until they have ended no other may start.
        """
        return tuple(self._pods[uid].view for uid in self._owned.get(key, ()))

    def pod(self, uid: str) -> PodView | None:
        """One pod by UID, departed ones included."""
        found = self._pods.get(uid)
        return found.view if found else None

    def keys(self) -> frozenset[ObjectKey]:
        """Every name of which a resource or a pod is known."""
        return frozenset(self._processes) | frozenset(self._owned)

    def process_keys(self) -> Iterator[ObjectKey]:
        """The names of the resources that exist, as far as is known."""
        yield from list(self._processes)

    def __len__(self) -> int:
        return len(self._processes) + len(self._pods)

    # --- AgentProcesses

    def put_agent_process(self, raw: Mapping[str, Any], *, wake: bool = True) -> bool:
        """Take in a resource as the API server has it; True if it was news.

        With ``wake=False`` ``on_change`` is not called: for a pass that knows what it has just written
        itself.
        """
        read = _identity(raw)
        if read is None:
            return False
        key, uid, version = read
        known = self._processes.get(key)
        if self._is_buried(uid):
            return False
        if known is not None:
            if known.uid == uid:
                known.seen = self._clock()
            if _not_newer(version, known.version):
                return False
            if known.uid != uid:
                self._bury(known.uid)
        self._processes[key] = _Process(uid, version, _compact(raw), self._clock())
        self._notify(key, wake)
        return True

    def drop_agent_process(self, raw: Mapping[str, Any], *, wake: bool = True) -> bool:
        """The API server no longer has this resource; True if that was news."""
        read = _identity(raw)
        return read is not None and self._drop_process(read[0], read[1], wake)

    def drop_agent_process_uid(self, key: ObjectKey, uid: str, *, wake: bool = True) -> bool:
        """The same, of a resource that a live GET did not find."""
        return self._drop_process(key, uid, wake)

    def _drop_process(self, key: ObjectKey, uid: str, wake: bool) -> bool:
        self._bury(uid)
        known = self._processes.get(key)
        if known is None or known.uid != uid:
            return False
        del self._processes[key]
        self._notify(key, wake)
        return True

    # --- pods

    def put_pod(self, raw: Mapping[str, Any], *, wake: bool = True) -> bool:
        """Take in a pod as the API server has it; True if it was news. Pods that no AgentProcess owns are not
        kept.
        """
        return self._take_pod(raw, departed=False, wake=wake)

    def drop_pod(self, raw: Mapping[str, Any], *, wake: bool = True) -> bool:
        """The API server no longer has this pod, and ``raw`` is its last state; True if that was news.

        What was last seen stays readable, with ``departed`` set, until ``forget_pod``.
        """
        return self._take_pod(raw, departed=True, wake=wake)

    def drop_pod_uid(self, uid: str, *, wake: bool = True) -> bool:
        """The same, of a pod that a live GET or a list did not find. What it came to the watch may still tell."""
        known = self._pods.get(uid)
        if known is None or known.view.departed:
            return False
        self._store_pod(replace(known.view, departed=True, missed_at=self._clock()), known.version)
        self._notify(_owner(known.view), wake)
        return True

    def found_pod(self, raw: Mapping[str, Any], *, wake: bool = True) -> bool:
        """The same as ``put_pod``, of a pod that a live GET has just shown to exist.

        That undoes what was concluded from its absence: a pod without our label is in no list and no watch, and runs
        on. Only a deletion that the watch has shown since stands.
        """
        uid, version = str(raw["metadata"]["uid"]), _version(raw["metadata"].get("resourceVersion"))
        known = self._pods.get(uid)
        if known is not None and known.left_at > version > 0:
            return False
        self._tombstones.pop(uid, None)
        if known is not None and known.view.departed:
            known.view = replace(known.view, departed=False, missed_at=None)
            known.version, known.left_at = 0, 0
            self._departed.pop(uid, None)
        return self.put_pod(raw, wake=wake)

    def forget_pod(self, uid: str) -> None:
        """Its end is recorded: nothing more is wanted of this pod, and no late event brings it back."""
        self._bury(uid)
        self._remove_pod(uid)

    def _take_pod(self, raw: Mapping[str, Any], *, departed: bool, wake: bool) -> bool:
        try:
            view = read_pod(raw, departed=departed)
        except UnreadableObject as error:
            log.warning("an object was left out: %s", error)
            return False
        if self._is_buried(view.uid):
            return False
        known, version = self._pods.get(view.uid), _version(view.resource_version)
        left_at = version if departed else 0
        if known is not None:
            known.seen = self._clock()
            if not departed and 0 < known.left_at <= version:
                # It had only left the selector: a deleted object has no version at or after its deletion.
                known.view, known.version = replace(known.view, departed=False), 0
                self._departed.pop(view.uid, None)
            if _not_newer(version, known.version):
                return departed and self.drop_pod_uid(view.uid, wake=wake)
            left_at = left_at or known.left_at
            view = merge(known.view, view)
            if _owner(view) != _owner(known.view):
                self._remove_pod(view.uid)
                self._notify(_owner(known.view), wake)
        if not view.owner_name:
            return known is not None
        self._store_pod(_lean(view), version, left_at if view.departed else 0)
        self._notify(_owner(view), wake)
        return True

    def _store_pod(self, view: PodView, version: int, left_at: int = 0) -> None:
        self._pods[view.uid] = _Pod(view, version, self._clock(), left_at)
        self._owned.setdefault(_owner(view), {})[view.uid] = None
        if view.departed and view.uid not in self._departed:
            self._departed[view.uid] = None
            while len(self._departed) > DEPARTED_PODS:
                self.forget_pod(next(iter(self._departed)))

    def _remove_pod(self, uid: str) -> None:
        known = self._pods.pop(uid, None)
        self._departed.pop(uid, None)
        if known is None:
            return
        owned = self._owned.get(_owner(known.view), {})
        owned.pop(uid, None)
        if not owned:
            self._owned.pop(_owner(known.view), None)

    # --- sweeping

    def drop_missing_agent_processes(self, present: Collection[str], before: float) -> int:
        """Drop what a complete list did not show: ``present`` are its UIDs, ``before`` when it was asked for.

        Whatever was seen after ``before`` stays: it may have been created since. Returns how many were
        dropped.
        """
        missing = [
            (key, item.uid)
            for key, item in self._processes.items()
            if item.seen < before and item.uid not in present
        ]
        return sum(self._drop_process(key, uid, True) for key, uid in missing)

    def drop_missing_pods(self, present: Collection[str], before: float) -> int:
        """The same for pods; they stay readable as departed."""
        missing = [
            uid
            for uid, item in self._pods.items()
            if item.seen < before and uid not in present and not item.view.departed
        ]
        return sum(self.drop_pod_uid(uid) for uid in missing)

    def knows_agent_process(self, raw: Mapping[str, Any]) -> bool:
        """Whether the cache is as new as ``raw``, of which only the metadata is looked at."""
        read = _identity(raw)
        if read is None or self._is_buried(read[1]):
            return True
        known = self._processes.get(read[0])
        return known is not None and known.version >= read[2]

    def knows_pod(self, raw: Mapping[str, Any]) -> bool:
        """The same for a pod. One that no AgentProcess controls is not wanted, so there is nothing to
        know.
        """
        try:
            view = read_pod(raw)
        except UnreadableObject:
            return True
        if not view.owner_name or self._is_buried(view.uid):
            return True
        known = self._pods.get(view.uid)
        return known is not None and (known.view.departed or known.version >= _version(view.resource_version))

    # --- tombstones

    def _notify(self, key: ObjectKey, wake: bool) -> None:
        if wake:
            self.on_change(key)

    def _is_buried(self, uid: str) -> bool:
        return uid in self._tombstones

    def _bury(self, uid: str) -> None:
        now = self._clock()
        self._tombstones[uid] = now
        self._tombstones.move_to_end(uid)
        while self._tombstones:
            oldest = next(iter(self._tombstones))
            if len(self._tombstones) <= TOMBSTONES and now - self._tombstones[oldest] < TOMBSTONE_SECONDS:
                break
            del self._tombstones[oldest]


def merge(old: PodView, new: PodView) -> PodView:
    """``new``, a later view of the same pod, with the evidence of ``old`` that the API server has since
    overwritten.

    * When a pod's deletion ends, its deletion timestamp is rewritten to that end with grace 0: the first one
      stays.
    * How the agent ended is kept once it was seen, and so is that it had ever started.
    * A pod that departed does not come back.
    """
    view = replace(
        new,
        agent=_evidence(old.agent, new.agent),
        departed=old.departed or new.departed,
        missed_at=None if new.departed else old.missed_at,
    )
    if old.terminating:
        view = replace(
            view,
            terminating=True,
            terminating_since=old.terminating_since,
            grace_seconds=new.grace_seconds if new.terminating and new.grace_seconds else old.grace_seconds,
        )
    if old.disrupted and not new.disrupted and view.terminating:
        view = replace(view, disrupted=True, disruption=old.disruption)
    return view


def _evidence(old: AgentContainer, new: AgentContainer) -> AgentContainer:
    if old.ended:
        return old
    if old.started and not new.started:
        return replace(new, started=True, started_at=old.started_at)
    return new


def _identity(raw: Mapping[str, Any]) -> tuple[ObjectKey, str, int] | None:
    meta = raw.get("metadata")
    if not isinstance(meta, Mapping):
        meta = {}
    namespace, name, uid = (meta.get(field) for field in ("namespace", "name", "uid"))
    if not (isinstance(namespace, str) and isinstance(name, str) and isinstance(uid, str)):
        log.warning("an object was left out: an AgentProcess without name, namespace or UID")
        return None
    return ObjectKey(namespace, name), uid, _version(meta.get("resourceVersion"))


def _version(value: object) -> int:
    """A resource version as a number, so that two can be ordered (promised by the API); 0 when it is none."""
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else 0


def _not_newer(version: int, known: int) -> bool:
    return 0 < version <= known


def _owner(view: PodView) -> ObjectKey:
    return ObjectKey(view.namespace, view.owner_name)


def _compact(raw: Mapping[str, Any]) -> bytes:
    body = dict(raw)
    meta = {key: value for key, value in body.get("metadata", {}).items() if key != "managedFields"}
    annotations = meta.get("annotations")
    if isinstance(annotations, Mapping) and LAST_APPLIED in annotations:
        meta["annotations"] = {key: value for key, value in annotations.items() if key != LAST_APPLIED}
    body["metadata"] = meta
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def _lean(view: PodView) -> PodView:
    if LAST_APPLIED not in view.annotations:
        return view
    return replace(view, annotations={k: v for k, v in view.annotations.items() if k != LAST_APPLIED})
