"""Who the backend is: one pod of those that match, in one lifetime of its main container."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from tenure.model.adoption import HandoverPolicy


class MainContainer(StrEnum):
    """The state of a backend's main container."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class BackendPod:
    """A pod that the selector matches and that exists. Pods without an object are simply not here."""

    uid: str
    created_at: datetime
    revision: str = ""
    """``pod-template-hash`` or ``controller-revision-hash``; empty for a pod without a controller."""
    main: MainContainer = MainContainer.WAITING
    container_id: str = ""
    terminating: bool = False
    containers_ready: bool = False

    @property
    def incarnation(self) -> str | None:
        """The running lifetime of its main container; None while there is none."""
        running = self.main is MainContainer.RUNNING and self.container_id != ""
        return f"{self.uid}/{self.container_id}" if running else None


@dataclass(frozen=True, slots=True)
class Backends:
    """Whose turn it is. ``current`` None: nobody drives the server, and nobody renews."""

    current: BackendPod | None = None
    standby: tuple[str, ...] = ()
    """UIDs of the other running pods, in the order of their creation."""
    overlap: bool = False
    """One of them is of the current one's revision: no rollout explains it."""


def choose(pods: tuple[BackendPod, ...], holder: str | None, policy: HandoverPolicy) -> Backends:
    """Whose turn it is, with ``holder`` the incarnation whose turn it was.

    The holder stays until it ends, is being deleted, or (``OnReady``) a newer pod of another revision is ready. Nothing
    else takes a turn away, so two that match never flap. A pod that is being deleted begins no turn; one whose turn it
    is keeps it until it ends or somebody else can take over.
    """
    running = sorted((p for p in pods if p.incarnation is not None), key=lambda p: (p.created_at, p.uid))
    held = next((p for p in running if p.incarnation == holder), None)
    current = _successor(running, held, policy) or held
    if current is None:
        return Backends()
    others = [p for p in running if p.uid != current.uid and not p.terminating]
    return Backends(
        current=current,
        standby=tuple(p.uid for p in others),
        overlap=any(p.revision == current.revision for p in others),
    )


def operator_as_backend(pod_uid: str, container_id: str, started_at: datetime) -> Backends:
    """Whose turn it is where no backend is named: the operator's own, as long as it runs. Outside of a cluster the
    two ids are made at its start."""
    own = BackendPod(pod_uid, started_at, main=MainContainer.RUNNING, container_id=container_id)
    return Backends(current=own)


def _successor(
    running: list[BackendPod], held: BackendPod | None, policy: HandoverPolicy
) -> BackendPod | None:
    free = [p for p in running if not p.terminating and p is not held]
    if held is not None and not held.terminating:
        if policy is HandoverPolicy.ON_END:
            return None
        free = [p for p in free if p.containers_ready and _newer_revision(p, held)]
    # A ready one first: a newer revision that never gets ready must not leave an older one that works without a turn.
    return max(free, key=lambda p: (p.containers_ready, p.created_at, p.uid), default=None)


def _newer_revision(pod: BackendPod, held: BackendPod) -> bool:
    return pod.created_at > held.created_at and pod.revision != held.revision
