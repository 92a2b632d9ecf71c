"""Every kind of call that Tenure makes to the API server, with the reason for it.

The client refuses a call that is not listed here, and the generated Role is this list and nothing else: so
the permissions cannot be narrower or wider than what the code does.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, StrEnum


class Verb(StrEnum):
    """Verbs of the API's authorization (Kubernetes docs, "Authorization", request verbs)."""

    GET = "get"
    LIST = "list"
    WATCH = "watch"
    CREATE = "create"
    UPDATE = "update"
    PATCH = "patch"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Resource:
    """A namespaced resource (or subresource) of the API."""

    group: str
    version: str
    plural: str
    subresource: str = ""

    @property
    def rbac_name(self) -> str:
        """As a Role names it: ``pods`` or ``agentprocesses/status``."""
        return f"{self.plural}/{self.subresource}" if self.subresource else self.plural

    @property
    def root(self) -> str:
        """The path of group and version: ``/api/v1`` or ``/apis/<group>/<version>``."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str | None, name: str | None) -> str:
        """The path template of one object or of a collection; None as namespace means all of them.

        The result has ``{namespace}`` and ``{name}`` where they belong: the client fills them in, quoted.
        """
        parts = [self.root]
        if namespace is not None:
            parts.append("namespaces/{namespace}")
        parts.append(self.plural)
        if name is not None:
            parts.append("{name}")
        if self.subresource:
            parts.append(self.subresource)
        return "/".join(parts)


AGENT_PROCESSES = Resource("tenure.dev", "v1alpha1", "agentprocesses")
AGENT_PROCESS_FINALIZERS = Resource("tenure.dev", "v1alpha1", "agentprocesses", "finalizers")
AGENT_PROCESS_STATUS = Resource("tenure.dev", "v1alpha1", "agentprocesses", "status")
CONTROL_SERVERS = Resource("tenure.dev", "v1alpha1", "controlservers")
CONTROL_SERVER_FINALIZERS = Resource("tenure.dev", "v1alpha1", "controlservers", "finalizers")
CONTROL_SERVER_STATUS = Resource("tenure.dev", "v1alpha1", "controlservers", "status")
PODS = Resource("", "v1", "pods")
POD_STATUS = Resource("", "v1", "pods", "status")
EVENTS = Resource("events.k8s.io", "v1", "events")
LEASES = Resource("coordination.k8s.io", "v1", "leases")
SECRETS = Resource("", "v1", "secrets")
CLAIMS = Resource("", "v1", "persistentvolumeclaims")
DISRUPTION_BUDGETS = Resource("policy", "v1", "poddisruptionbudgets")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies")


class Companion(Enum):
    """What stands beside a control server's pod."""

    CLAIM = CLAIMS
    DISRUPTION_BUDGET = DISRUPTION_BUDGETS
    NETWORK_POLICY = NETWORK_POLICIES


@dataclass(frozen=True, slots=True)
class Call:
    """One permission: a verb on a resource, and what it is needed for."""

    resource: Resource
    verb: Verb
    why: str
    watched: bool = False
    """Made by kopf's watch streams, not by our own client."""
    judged: bool = False
    """Never made: the API server asks whether it might be, before it takes another one. The admission plugin
    OwnerReferencesPermissionEnforcement (on OpenShift always on) does so for owner references with
    ``blockOwnerDeletion``, by which a foreground deletion (Argo CD's) waits for the pods."""


CALLS: tuple[Call, ...] = (
    Call(AGENT_PROCESSES, Verb.LIST, "know the agents; sweep the cache against the truth"),
    Call(AGENT_PROCESSES, Verb.WATCH, "be told of a changed agent", watched=True),
    Call(AGENT_PROCESSES, Verb.GET, "read an agent live before acting on it"),
    Call(AGENT_PROCESS_STATUS, Verb.PATCH, "say what is true of an agent"),
    Call(
        AGENT_PROCESS_FINALIZERS,
        Verb.UPDATE,
        "have an agent's deletion in the foreground wait for its pod",
        judged=True,
    ),
    Call(PODS, Verb.LIST, "know the agents' pods; sweep the cache against the truth"),
    Call(PODS, Verb.WATCH, "be told of a pod's end", watched=True),
    Call(PODS, Verb.GET, "read a pod live before a create or a delete"),
    Call(PODS, Verb.CREATE, "start an agent"),
    Call(PODS, Verb.PATCH, "mark a busy agent so that autoscalers spare it"),
    Call(PODS, Verb.DELETE, "drain an agent, or clear away an ended pod"),
    Call(CONTROL_SERVERS, Verb.LIST, "know the control servers; sweep the cache against the truth"),
    Call(CONTROL_SERVERS, Verb.WATCH, "be told of a changed control server", watched=True),
    Call(CONTROL_SERVERS, Verb.GET, "read a control server live before acting on it"),
    Call(CONTROL_SERVER_STATUS, Verb.PATCH, "say what is true of a control server"),
    Call(
        CONTROL_SERVER_FINALIZERS,
        Verb.UPDATE,
        "have a control server's deletion in the foreground wait for what belongs to it",
        judged=True,
    ),
    Call(POD_STATUS, Verb.PATCH, "tell a backend's pod, by its readiness gate, that recovery is over"),
    Call(SECRETS, Verb.GET, "read a server's credential, by its name"),
    Call(SECRETS, Verb.CREATE, "keep a server's nonce, credential and hand-over"),
    Call(SECRETS, Verb.UPDATE, "keep a rotated credential; fill and empty the hand-over"),
    Call(SECRETS, Verb.DELETE, "take back a nonce that was handed in"),
    Call(CLAIMS, Verb.GET, "see whose a server's volume claim is"),
    Call(CLAIMS, Verb.CREATE, "claim a volume for a server"),
    Call(DISRUPTION_BUDGETS, Verb.GET, "see whose a disruption budget is"),
    Call(DISRUPTION_BUDGETS, Verb.CREATE, "keep drains away from a server that hosts instances"),
    Call(DISRUPTION_BUDGETS, Verb.UPDATE, "correct a disruption budget of ours"),
    Call(DISRUPTION_BUDGETS, Verb.DELETE, "let drains move a server that hosts nothing"),
    Call(NETWORK_POLICIES, Verb.GET, "see whose a network policy is"),
    Call(NETWORK_POLICIES, Verb.CREATE, "let only operator and backend reach a server"),
    Call(NETWORK_POLICIES, Verb.UPDATE, "correct a network policy of ours"),
    Call(EVENTS, Verb.CREATE, "tell people what happened"),
    Call(LEASES, Verb.GET, "see who drives this scope"),
    Call(LEASES, Verb.CREATE, "be the first to drive this scope"),
    Call(LEASES, Verb.UPDATE, "renew, take over or release the scope"),
)

BACKEND_CALLS: tuple[Call, ...] = (Call(SECRETS, Verb.GET, "read the hand-over"),)
"""What a backend's library calls, as the backend's own ServiceAccount: no part of the operator's Role."""


class UndeclaredCall(RuntimeError):
    """A programming error: a call that no Role would allow, because ``CALLS`` does not list it."""


def declared(resource: Resource, verb: Verb, among: Iterable[Call] = CALLS) -> Call:
    """The entry for this call; raises ``UndeclaredCall`` when there is none."""
    for call in among:
        if (call.resource, call.verb) == (resource, verb):
            return call
    raise UndeclaredCall(f"{verb} {resource.group}/{resource.rbac_name} is not declared in CALLS")
