"""What an AgentProcess may be, row by row: used against the real API server and against the operator's own parser."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.support.agent_manifests import Manifest, changed, hosted, manifest


@dataclass(frozen=True)
class Refused:
    """A manifest with one thing wrong, and what the person who wrote it is told."""

    what: str
    path: str
    value: Any
    sentence: str
    by_parser: bool = True
    """Whether the parser refuses it too. It does not where only a typing error is meant, which it cannot meet."""
    base: Callable[[], Manifest] = manifest

    @property
    def manifest(self) -> Manifest:
        """The manifest, right but for this."""
        return changed(self.base(), self.path, self.value)

    def __str__(self) -> str:
        return self.what


_KIND = "must have 1 to 63 characters, none of them a control character"
_DATABASE = "must be the name of one of the operator's databases: lower case letters, digits and dashes"
_SECRET = "must be the name of a Secret in the same namespace"
_KEY = "must be a key of that Secret"
_HOST = "must be left out: agents are told apart by the pod's own name"
_NEVER = "restartPolicy must be Never or left out: one pod is one lifetime of the agent"
_BACKOFF = "maxSeconds (300 when left out) must not be less than initialSeconds (10 when left out)"
_CONTAINER = "containers must name at least one container; the first one is the agent"
_SERVER = "must be the name of a ControlServer in the same namespace"
_ID = "must be an id: letters, digits, dashes, dots, underscores and colons"
_ONE_KIND = "exactly one of template and session must be given"
_REF = "spec.liveness.credentialsSecretRef"
_POD = "spec.template.spec"

REFUSED = (
    Refused("no spec", "spec", ..., "spec: Required value"),
    Refused(
        "a name of 64 characters",
        "metadata.name",
        "n" * 64,
        "must have at most 63 characters",
        by_parser=False,
    ),
    Refused("an unknown desired state", "spec.desiredState", "Paused", '"Running", "StopRequested"'),
    Refused("a kind of 64 characters", "spec.processKind", "k" * 64, "may not be more than 63"),
    Refused("an empty kind", "spec.processKind", "", _KIND),
    Refused("a kind with a line feed", "spec.processKind", "a\nb", _KIND),
    Refused("a kind that ends in a line feed", "spec.processKind", "a\n", _KIND),
    Refused("a kind with a tab", "spec.processKind", "a\tb", _KIND),
    Refused("a kind with a DEL", "spec.processKind", "a\x7f", _KIND),
    Refused("a kind with a NEL", "spec.processKind", "a\x85", _KIND),
    Refused("a kind with a NUL", "spec.processKind", "\0", _KIND),
    Refused("a token of 254 characters", "spec.restartToken", "t" * 254, "may not be more than 253"),
    Refused("an unknown reaction to a table stop", "spec.onExternalStop", "Resume", '"Stay", "Restart"'),
    Refused("an unknown restart policy", "spec.restartPolicy", "Sometimes", '"Always", "OnFailure", "Never"'),
    Refused("no initial back-off", "spec.backoff.initialSeconds", 0, "must be from 1 to 3600 seconds"),
    Refused(
        "a long initial back-off",
        "spec.backoff",
        {"initialSeconds": 3601, "maxSeconds": 9999},
        "1 to 3600 seconds",
    ),
    Refused("no greatest back-off", "spec.backoff.maxSeconds", 0, "must be from 1 to 86400 seconds"),
    Refused(
        "a greatest back-off over a day", "spec.backoff.maxSeconds", 86401, "must be from 1 to 86400 seconds"
    ),
    Refused(
        "back-off ends under its start", "spec.backoff", {"initialSeconds": 60, "maxSeconds": 59}, _BACKOFF
    ),
    Refused("back-off starts over the default end", "spec.backoff.initialSeconds", 600, _BACKOFF),
    Refused("no grace", "spec.drain.gracePeriodSeconds", 0, "must be from 1 to 86400 seconds"),
    Refused("a negative grace", "spec.drain.gracePeriodSeconds", -1, "must be from 1 to 86400 seconds"),
    Refused("a grace over a day", "spec.drain.gracePeriodSeconds", 86401, "must be from 1 to 86400 seconds"),
    Refused(
        "a grace with a unit", "spec.drain.gracePeriodSeconds", "10m", 'must be of type integer: "string"'
    ),
    Refused("an unknown policy for the hung", "spec.hung.policy", "Kill", '"Report", "Restart"'),
    Refused(
        "hung after two intervals", "spec.hung.afterIntervals", 2, "must be from 3 to 1000 liveness intervals"
    ),
    Refused(
        "hung after 1001 intervals",
        "spec.hung.afterIntervals",
        1001,
        "must be from 3 to 1000 liveness intervals",
    ),
    Refused("stuck at once", "spec.stuckTaskSeconds", 0, "must be from 1 to 31536000 seconds"),
    Refused(
        "stuck after more than a year",
        "spec.stuckTaskSeconds",
        31536001,
        "must be from 1 to 31536000 seconds",
    ),
    Refused("an unknown liveness mode", "spec.liveness.mode", "Redis", '"Table", "Pod"'),
    Refused("a database in capitals", "spec.liveness.database", "Main", _DATABASE),
    Refused("a database without a name", "spec.liveness.database", "", _DATABASE),
    Refused("a URL for a database", "spec.liveness.database", "postgresql://u:p@h/d", _DATABASE),
    Refused(
        "a database name of 64 characters", "spec.liveness.database", "d" * 64, "may not be more than 63"
    ),
    Refused("no interval", "spec.liveness.intervalSeconds", 0, "must be from 1 to 3600 seconds"),
    Refused(
        "an interval over an hour", "spec.liveness.intervalSeconds", 3601, "must be from 1 to 3600 seconds"
    ),
    Refused("a Secret of another namespace", _REF, {"name": "other/database", "key": "url"}, _SECRET),
    Refused("a Secret without a name", _REF, {"name": "", "key": "url"}, _SECRET),
    Refused("a Secret that is not named", _REF, {"key": "url"}, f"{_REF}.name: Required value"),
    Refused("a Secret without its key", _REF, {"name": "database"}, f"{_REF}.key: Required value"),
    Refused("an empty key", _REF, {"name": "database", "key": ""}, _KEY),
    Refused("a path for a key", _REF, {"name": "database", "key": "a/b"}, _KEY),
    Refused("an unknown eviction policy", "spec.eviction", "Forbid", '"ProtectWhileBusy", "Allow"'),
    Refused("no template", "spec", {"desiredState": "Running"}, _ONE_KIND),
    Refused("a template without a spec", "spec.template", {}, "spec must be given: a pod spec"),
    Refused("a template without containers", _POD, {"nodeName": "n"}, _CONTAINER),
    Refused("an empty list of containers", f"{_POD}.containers", [], _CONTAINER),
    Refused(
        "65 containers",
        f"{_POD}.containers",
        [{"name": f"c{n}"} for n in range(65)],
        "at most 64 items",
        by_parser=False,
    ),
    Refused("the host's network", f"{_POD}.hostNetwork", True, "hostNetwork must be left out"),
    Refused("a host name", f"{_POD}.hostname", "me", f"hostname {_HOST}"),
    Refused("another host name", f"{_POD}.hostnameOverride", "me", f"hostnameOverride {_HOST}"),
    Refused("a qualified host name", f"{_POD}.setHostnameAsFQDN", True, f"setHostnameAsFQDN {_HOST}"),
    Refused(
        "a grace in the template",
        f"{_POD}.terminationGracePeriodSeconds",
        30,
        "terminationGracePeriodSeconds must be left out: spec.drain.gracePeriodSeconds sets it",
    ),
    Refused("a pod that always restarts", f"{_POD}.restartPolicy", "Always", _NEVER),
    Refused("a pod that restarts on failure", f"{_POD}.restartPolicy", "OnFailure", _NEVER),
    Refused("template and session", "spec.session", hosted()["spec"]["session"], _ONE_KIND),
    *(
        Refused(what, f"spec.session.{path}", value, sentence, base=hosted)
        for what, path, value, sentence in (
            ("a session nowhere", "controlServerRef", ..., "spec.session.controlServerRef: Required value"),
            ("a session in no server", "controlServerRef.name", "", _SERVER),
            ("a session in a server of another namespace", "controlServerRef.name", "other/main", _SERVER),
            ("a server with a long name", "controlServerRef.name", "n" * 64, "may not be more than 63"),
            ("a session without an id", "sessionID", ..., "spec.session.sessionID: Required value"),
            ("an empty session id", "sessionID", "", _ID),
            ("a session id with spaces", "sessionID", "a b", _ID),
            ("a session id of 129 characters", "sessionID", "s" * 129, "may not be more than 128"),
            ("a session without a task", "taskID", ..., "spec.session.taskID: Required value"),
            ("a task id with a slash", "taskID", "a/b", _ID),
            ("a session without a profile", "agentProfile", ..., "agentProfile: Required value"),
            ("a profile in capitals", "agentProfile", "Claude", "must be the name of a profile"),
            ("a session without a workspace", "workspacePath", ..., "workspacePath: Required value"),
            ("a relative workspace", "workspacePath", "work/a", "must be an absolute path"),
            ("a workspace with a line feed", "workspacePath", "/work/a\n", "must be an absolute path"),
            ("a relative source root", "workspaceSourceRoots", ["/a", "b"], "must be an absolute path"),
            ("65 source roots", "workspaceSourceRoots", ["/a"] * 65, "at most 64 items"),
            ("a prompt that has no end", "prompt", "p" * 65537, "may not be more than 65536"),
        )
    ),
)

MISSPELT = (
    Refused("a misspelt field", "spec.desireState", "Running", 'unknown field "spec.desireState"'),
    Refused(
        "a session in another namespace",
        "spec.session.controlServerRef.namespace",
        "other",
        'unknown field "spec.session.controlServerRef.namespace"',
        base=hosted,
    ),
    Refused(
        "a server's address",
        "spec.session.endpoint",
        "https://server:8443",
        'unknown field "spec.session.endpoint"',
        base=hosted,
    ),
    Refused(
        "a Secret's namespace",
        _REF,
        {"name": "database", "key": "url", "namespace": "other"},
        f'unknown field "{_REF}.namespace"',
    ),
    Refused(
        "a pod's namespace",
        "spec.template.metadata.namespace",
        "other",
        'unknown field "spec.template.metadata.namespace"',
    ),
    Refused(
        "an owner",
        "spec.template.metadata.ownerReferences",
        [],
        'unknown field "spec.template.metadata.ownerReferences"',
    ),
    Refused(
        "a finalizer",
        "spec.template.metadata.finalizers",
        ["a/b"],
        'unknown field "spec.template.metadata.finalizers"',
    ),
)
"""Refused where fields are validated strictly, which is what kubectl asks for, and dropped where they are not."""


@dataclass(frozen=True)
class Accepted:
    """A manifest at the edge of what is allowed."""

    what: str
    path: str
    value: Any
    base: Callable[[], Manifest] = manifest

    @property
    def manifest(self) -> Manifest:
        """The manifest."""
        return changed(self.base(), self.path, self.value)

    def __str__(self) -> str:
        return self.what


ACCEPTED = (
    Accepted("nothing but a template", "metadata.name", "reviewer"),
    Accepted("a name of 63 characters", "metadata.name", "n" * 63),
    Accepted("a name with dots", "metadata.name", "team.reviewer.v2"),
    Accepted("a request to stop", "spec.desiredState", "StopRequested"),
    Accepted("a kind of 63 characters", "spec.processKind", "k" * 63),
    Accepted("a kind in any script", "spec.processKind", "批评家 " * 12),
    Accepted("a kind with quotes", "spec.processKind", '"it\'s" \\ 100%'),
    Accepted("empty groups", "spec.backoff", {}),
    Accepted("equal back-offs", "spec.backoff", {"initialSeconds": 60, "maxSeconds": 60}),
    Accepted("a short greatest back-off", "spec.backoff.maxSeconds", 10),
    Accepted("the least grace", "spec.drain.gracePeriodSeconds", 1),
    Accepted("the greatest grace", "spec.drain.gracePeriodSeconds", 86400),
    Accepted("hung after three intervals", "spec.hung", {"policy": "Restart", "afterIntervals": 3}),
    Accepted("a stuck task", "spec.stuckTaskSeconds", 1),
    Accepted("no table", "spec.liveness.mode", "Pod"),
    Accepted("the shortest interval", "spec.liveness.intervalSeconds", 1),
    Accepted("a database of one letter", "spec.liveness.database", "b"),
    Accepted("a Secret with dots", _REF, {"name": "my.database-1", "key": "DATABASE_URL.txt"}),
    Accepted("no protection", "spec.eviction", "Allow"),
    Accepted("a harmless host network", f"{_POD}.hostNetwork", False),
    Accepted("a harmless host name", f"{_POD}.setHostnameAsFQDN", False),
    Accepted("the one restart policy", f"{_POD}.restartPolicy", "Never"),
    Accepted("a subdomain", f"{_POD}.subdomain", "agents"),
    Accepted("labels", "spec.template.metadata", {"labels": {"a/b": "c"}, "annotations": {"d": "e" * 1000}}),
    Accepted(
        "what kubectl create writes",
        "spec.template.metadata",
        {"creationTimestamp": None, "labels": {"a": "b"}},
    ),
    Accepted("a hosted session", "metadata.name", "session-1", base=hosted),
    Accepted("a session in a server with dots", "spec.session.controlServerRef.name", "main.v2", base=hosted),
    Accepted("ids of another system", "spec.session.sessionID", "01J:a_b.c-9", base=hosted),
    Accepted("source roots", "spec.session.workspaceSourceRoots", ["/", "/src/repo one"], base=hosted),
    Accepted(
        "a prompt of several lines", "spec.session.prompt", "Do this.\n\nThen that. \u2705", base=hosted
    ),
)
