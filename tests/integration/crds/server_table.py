"""What a ControlServer may be, row by row: used against the real API server and against the operator's own parser."""

from functools import partial
from typing import Any

from tests.integration.crds import table
from tests.support.agent_manifests import Manifest
from tests.support.server_manifests import server_manifest


def _with_a_profile() -> Manifest:
    return server_manifest(agentProfiles=[{"name": "echo", "command": ["echo"]}])


def _profile(**fields: Any) -> list[Manifest]:
    return [{"name": "echo", "command": ["echo"], **fields}]


def _variable(**fields: Any) -> list[Manifest]:
    return _profile(env=[{"name": "KEY", **fields}])


Refused = partial(table.Refused, base=server_manifest)
Accepted = partial(table.Accepted, base=server_manifest)

_SELECTOR = "spec.backend.selector"
_SELECTED = {"matchLabels": {"app": "backend"}}
_POD = "spec.server.template.spec"
_PROFILES = "spec.agentProfiles"
_READS = (
    "readTimeoutMilliseconds x (readRetries + 1) must be at most 6000, and at most a fifth of deadlineSeconds"
)
_WINDOWS = "agentSurvival must be Disabled for a server on Windows nodes (platform_windows)"
_ID = "must be a name for the installation: lower case letters, digits and dashes"
_SOURCE = "exactly one of value and valueFrom must be given"
_VALUES = "values must be given with In and NotIn, and left out with Exists and DoesNotExist"
_HOST = "must be left out: servers are told apart by the pod's own name"
_NEVER = "restartPolicy must be Never or left out: one pod is one lifetime of a server"
_GRACE = "terminationGracePeriodSeconds must be from 35 to 3600 seconds, or left out"
_SECRET = "must be the name of a Secret in the same namespace"
_LABEL_KEY = "must be the key of a label"


def _expression(**fields: Any) -> Manifest:
    return {"matchExpressions": [{"key": "app", **fields}]}


_EXPRESSED = _expression(key="my app", operator="Exists")

REFUSED = (
    Refused("no spec", "spec", ..., "spec: Required value"),
    Refused(
        "a name of 64 characters",
        "metadata.name",
        "n" * 64,
        "must have at most 63 characters",
        by_parser=False,
    ),
    Refused("survival by half", "spec.agentSurvival", "Maybe", '"Disabled", "Enabled"'),
    Refused("survival in lower case", "spec.agentSurvival", "enabled", '"Disabled", "Enabled"'),
    Refused("an empty installation", "spec.installationID", "", _ID),
    Refused("an installation in capitals", "spec.installationID", "Main", _ID),
    Refused("an installation that is a path", "spec.installationID", "../other", _ID),
    Refused("an installation of 64 characters", "spec.installationID", "i" * 64, "may not be more than 63"),
    # the backend
    Refused("a backend without a selector", "spec.backend", {}, f"{_SELECTOR}: Required value"),
    Refused("a selector of everything", _SELECTOR, {}, "must name at least one label or expression"),
    Refused(
        "a selector of no labels",
        _SELECTOR,
        {"matchLabels": {}, "matchExpressions": []},
        "must name at least one label or expression",
    ),
    Refused("a key with spaces", _SELECTOR, {"matchLabels": {"my app": "x"}}, _LABEL_KEY),
    Refused(
        "a value with a slash", _SELECTOR, {"matchLabels": {"app": "a/b"}}, "must be the value of a label"
    ),
    Refused("a label of 64 characters", _SELECTOR, {"matchLabels": {"app": "v" * 64}}, "more than 63"),
    Refused("an unknown operator", _SELECTOR, _expression(operator="Gt", values=["1"]), '"In", "NotIn"'),
    Refused("In nothing", _SELECTOR, _expression(operator="In"), _VALUES),
    Refused("NotIn nothing", _SELECTOR, _expression(operator="NotIn", values=[]), _VALUES),
    Refused("existence with a value", _SELECTOR, _expression(operator="Exists", values=["a"]), _VALUES),
    Refused("an expression about a key with spaces", _SELECTOR, _EXPRESSED, _LABEL_KEY),
    Refused(
        "In a value with a slash",
        _SELECTOR,
        _expression(operator="In", values=["a", "a/b"]),
        "must be the value of a label",
    ),
    Refused(
        "an expression without a key",
        _SELECTOR,
        {"matchExpressions": [{"operator": "Exists"}]},
        "key: Required",
    ),
    Refused(
        "a container in capitals",
        "spec.backend",
        {"selector": _SELECTED, "container": "Main"},
        "must be the name of a container",
    ),
    Refused(
        "an unknown hand-over",
        "spec.backend",
        {"selector": _SELECTED, "handover": "Never"},
        '"OnReady", "OnEnd"',
    ),
    # the pod
    Refused("an empty image", "spec.server.image", "", "must be the name of an image"),
    Refused("an image with a space", "spec.server.image", "server: 1", "must be the name of an image"),
    Refused("resources that are a text", "spec.server.resources", "1Gi", 'must be of type object: "string"'),
    Refused("the host's network", f"{_POD}.hostNetwork", True, "hostNetwork must be left out"),
    Refused("a host name", f"{_POD}.hostname", "me", f"hostname {_HOST}"),
    Refused("another host name", f"{_POD}.hostnameOverride", "me", f"hostnameOverride {_HOST}"),
    Refused("a qualified host name", f"{_POD}.setHostnameAsFQDN", True, f"setHostnameAsFQDN {_HOST}"),
    Refused("a pod that always restarts", f"{_POD}.restartPolicy", "Always", _NEVER),
    Refused("a pod that restarts on failure", f"{_POD}.restartPolicy", "OnFailure", _NEVER),
    Refused("a grace that is too short", f"{_POD}.terminationGracePeriodSeconds", 34, _GRACE),
    Refused("a grace over an hour", f"{_POD}.terminationGracePeriodSeconds", 3601, _GRACE),
    *(
        Refused(
            f"{name} of the server",
            f"{_POD}.containers",
            [{"name": "proxy"}, {"name": "server", name: value}],
            f"{name} must be left out of the container server",
        )
        for name, value in (
            ("livenessProbe", {"tcpSocket": {"port": 8443}}),
            ("command", ["sleep", "infinity"]),
            ("args", ["--home", "/elsewhere"]),
        )
    ),
    Refused(
        "65 containers",
        f"{_POD}.containers",
        [{"name": f"c{n}"} for n in range(65)],
        "at most 64 items",
        by_parser=False,
    ),
    # where survival is unavailable: the parser reads such an object, for the status has to say so
    Refused(
        "survival on Windows, by os",
        "spec",
        {"agentSurvival": "Enabled", "server": {"template": {"spec": {"os": {"name": "windows"}}}}},
        _WINDOWS,
        by_parser=False,
    ),
    Refused(
        "survival on Windows, by node selector",
        "spec",
        {
            "agentSurvival": "Enabled",
            "server": {"template": {"spec": {"nodeSelector": {"kubernetes.io/os": "windows"}}}},
        },
        _WINDOWS,
        by_parser=False,
    ),
    # storage
    Refused(
        "two kinds of storage",
        "spec.storage",
        {"emptyDir": {}, "volumeClaimTemplate": {"spec": {}}},
        "at most one of emptyDir and volumeClaimTemplate must be given",
    ),
    Refused(
        "a claim without a spec",
        "spec.storage",
        {"volumeClaimTemplate": {}},
        "spec.storage.volumeClaimTemplate.spec: Required value",
    ),
    # the tunables of recovery
    Refused("no deadline", "spec.recovery.deadlineSeconds", 0, "must be from 1 to 300 seconds"),
    Refused(
        "a deadline of five minutes and a second", "spec.recovery.deadlineSeconds", 301, "1 to 300 seconds"
    ),
    Refused(
        "a read of 99 milliseconds",
        "spec.recovery.readTimeoutMilliseconds",
        99,
        "must be from 100 to 6000 milliseconds",
    ),
    Refused("a negative number of retries", "spec.recovery.readRetries", -1, "must be from 0 to 10 retries"),
    Refused("eleven retries", "spec.recovery.readRetries", 11, "must be from 0 to 10 retries"),
    Refused("reads of more than six seconds", "spec.recovery.readTimeoutMilliseconds", 2001, _READS),
    Refused("too many reads", "spec.recovery.readRetries", 3, _READS),
    Refused("reads of more than a fifth of the deadline", "spec.recovery.deadlineSeconds", 29, _READS),
    Refused(
        "reads that leave no room in five minutes either",
        "spec.recovery",
        {"deadlineSeconds": 300, "readTimeoutMilliseconds": 6000, "readRetries": 1},
        _READS,
    ),
    # the server's own
    Refused(
        "an unowned period under a minute",
        "spec.unownedPeriodSeconds",
        59,
        "must be from 60 to 2592000 seconds",
    ),
    Refused(
        "an unowned period of years",
        "spec.unownedPeriodSeconds",
        2592001,
        "must be from 60 to 2592000 seconds",
    ),
    Refused("a negative idle time-out", "spec.idleTimeoutSeconds", -1, "must be from 0 to 2592000 seconds"),
    Refused(
        "an idle time-out of years", "spec.idleTimeoutSeconds", 2592001, "must be from 0 to 2592000 seconds"
    ),
    Refused("no events kept", "spec.detachedEventLimit", 0, "must be from 1 to 10000 events"),
    Refused("10001 events kept", "spec.detachedEventLimit", 10001, "must be from 1 to 10000 events"),
    # profiles
    Refused("a profile without a name", _PROFILES, [{"command": ["a"]}], "name: Required value"),
    Refused("a profile in capitals", _PROFILES, _profile(name="Echo"), "must be the name of a profile"),
    Refused("two profiles of one name", _PROFILES, _profile() * 2, "Duplicate value"),
    Refused("a profile without a command", _PROFILES, [{"name": "echo"}], "command: Required value"),
    Refused("an empty command", _PROFILES, _profile(command=[]), "should have at least 1 items"),
    Refused("a command with a NUL", _PROFILES, _profile(command=["a\0"]), "should match"),
    Refused(
        "33 profiles", _PROFILES, [{"name": f"p{n}", "command": ["a"]} for n in range(33)], "at most 32 items"
    ),
    Refused("an unknown history", _PROFILES, _profile(history="Some"), '"Load", "Discard"'),
    Refused("permissions for good", _PROFILES, _profile(permissions="AllowAlways"), '"Deny", "AllowOnce"'),
    Refused("a variable without a value", _PROFILES, _variable(), _SOURCE),
    Refused(
        "a variable with two values",
        _PROFILES,
        _variable(value="a", valueFrom={"secretKeyRef": {"name": "a", "key": "b"}}),
        _SOURCE,
    ),
    Refused("a variable from nowhere", _PROFILES, _variable(valueFrom={}), "secretKeyRef: Required value"),
    Refused(
        "a variable of another namespace",
        _PROFILES,
        _variable(valueFrom={"secretKeyRef": {"name": "other/keys", "key": "b"}}),
        _SECRET,
    ),
    Refused(
        "a variable from a path",
        _PROFILES,
        _variable(valueFrom={"secretKeyRef": {"name": "keys", "key": "a/b"}}),
        "must be a key of that Secret",
    ),
    Refused(
        "a variable with an equals sign",
        _PROFILES,
        _variable(name="A=B", value=""),
        "must be the name of a variable",
    ),
    Refused(
        "a variable that starts with a digit",
        _PROFILES,
        _variable(name="1A", value=""),
        "must be the name of a variable",
    ),
    Refused(
        "a variable twice",
        _PROFILES,
        _profile(env=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]),
        "Duplicate value",
    ),
)

MISSPELT = (
    Refused("a misspelt field", "spec.agentsurvival", "Enabled", 'unknown field "spec.agentsurvival"'),
    Refused("an id in small letters", "spec.installationId", "main", 'unknown field "spec.installationId"'),
    Refused("an address", "spec.endpoint", "https://elsewhere:8443", 'unknown field "spec.endpoint"'),
    Refused("a credential", "spec.server.credential", "hunter2", 'unknown field "spec.server.credential"'),
    Refused(
        "a backend in another namespace",
        "spec.backend",
        {"selector": _SELECTED, "namespace": "other"},
        'unknown field "spec.backend.namespace"',
    ),
    Refused(
        "a pod's namespace",
        "spec.server.template.metadata.namespace",
        "other",
        'unknown field "spec.server.template.metadata.namespace"',
    ),
    Refused(
        "an owner of the claim",
        "spec.storage.volumeClaimTemplate",
        {"metadata": {"ownerReferences": []}, "spec": {}},
        'unknown field "spec.storage.volumeClaimTemplate.metadata.ownerReferences"',
    ),
)
"""Refused where fields are validated strictly, which is what kubectl asks for, and dropped where they are not."""

ACCEPTED = (
    Accepted("nothing at all", "metadata.name", "main"),
    Accepted("a name of 63 characters", "metadata.name", "n" * 63),
    Accepted("a name with dots", "metadata.name", "main.v2"),
    Accepted("survival", "spec.agentSurvival", "Enabled"),
    Accepted("an installation of one letter", "spec.installationID", "m"),
    Accepted("a UID for an installation", "spec.installationID", "0b6e8d1c-0000-4000-8000-123456789abc"),
    Accepted("a backend by a label", _SELECTOR, _SELECTED),
    Accepted("a backend by an empty value", _SELECTOR, {"matchLabels": {"example.com/backend": ""}}),
    Accepted("a backend by expressions", _SELECTOR, _expression(operator="NotIn", values=["a", ""])),
    Accepted("a backend by a key alone", _SELECTOR, _expression(operator="Exists")),
    Accepted(
        "a backend's container and hand-over",
        "spec.backend",
        {"selector": _SELECTED, "container": "app", "handover": "OnEnd"},
    ),
    Accepted("an image by digest", "spec.server.image", "registry:5000/a/b@sha256:" + "0" * 64),
    Accepted("resources", "spec.server.resources", {"requests": {"cpu": 1, "memory": "1Gi"}, "claims": []}),
    Accepted("an empty template", "spec.server.template", {}),
    Accepted(
        "labels alone",
        "spec.server.template",
        {"metadata": {"labels": {"a": "b"}, "creationTimestamp": None}},
    ),
    Accepted(
        "a sidecar with a probe",
        f"{_POD}.containers",
        [
            {"name": "server", "env": [{"name": "A", "value": "b"}]},
            {"name": "proxy", "command": ["proxy"], "args": ["-v"], "livenessProbe": {"exec": {}}},
        ],
    ),
    Accepted("a harmless host network", f"{_POD}.hostNetwork", False),
    Accepted("a harmless host name", f"{_POD}.setHostnameAsFQDN", False),
    Accepted("the one restart policy", f"{_POD}.restartPolicy", "Never"),
    Accepted("the least grace", f"{_POD}.terminationGracePeriodSeconds", 35),
    Accepted("the greatest grace", f"{_POD}.terminationGracePeriodSeconds", 3600),
    Accepted(
        "Windows without survival",
        "spec.server.template",
        {"spec": {"nodeSelector": {"kubernetes.io/os": "windows"}}},
    ),
    Accepted(
        "survival on Linux",
        "spec",
        {
            "agentSurvival": "Enabled",
            "server": {
                "template": {
                    "spec": {"os": {"name": "linux"}, "nodeSelector": {"kubernetes.io/os": "linux", "a": "b"}}
                }
            },
        },
    ),
    Accepted("a directory", "spec.storage", {"emptyDir": {"sizeLimit": "1Gi", "medium": "Memory"}}),
    Accepted(
        "a claim",
        "spec.storage.volumeClaimTemplate",
        {
            "metadata": {"labels": {"a": "b"}},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}},
        },
    ),
    Accepted("the longest deadline", "spec.recovery.deadlineSeconds", 300),
    Accepted(
        "the shortest deadline",
        "spec.recovery",
        {"deadlineSeconds": 1, "readTimeoutMilliseconds": 100, "readRetries": 1},
    ),
    Accepted(
        "exactly a fifth",
        "spec.recovery",
        {"deadlineSeconds": 10, "readTimeoutMilliseconds": 1000, "readRetries": 1},
    ),
    Accepted("one long read", "spec.recovery", {"readTimeoutMilliseconds": 6000, "readRetries": 0}),
    Accepted("many short reads", "spec.recovery", {"readTimeoutMilliseconds": 500, "readRetries": 10}),
    Accepted("the shortest unowned period", "spec.unownedPeriodSeconds", 60),
    Accepted("no idle reaping", "spec.idleTimeoutSeconds", 0),
    Accepted("one event kept", "spec.detachedEventLimit", 1),
    Accepted("10000 events kept", "spec.detachedEventLimit", 10000),
    Accepted("a profile", "metadata.name", "main", base=_with_a_profile),
    Accepted(
        "a profile with everything",
        _PROFILES,
        _profile(
            continueArgs=["--continue"],
            history="Discard",
            permissions="AllowOnce",
            env=[
                {"name": "EMPTY", "value": ""},
                {"name": "http.proxy-host", "value": "über"},
                {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "model.keys", "key": "api-key"}}},
            ],
        ),
    ),
)
