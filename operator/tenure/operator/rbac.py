"""The permissions that the operator needs, from the list of what it calls: nothing else is ever asked for."""

from collections.abc import Iterable
from typing import Any

from tenure.cluster.calls import CALLS, LEASES, Call, Verb

DEFAULT_NAME = "tenure-operator"

Json = dict[str, Any]


def rules(calls: Iterable[Call], lease_name: str = DEFAULT_NAME) -> list[Json]:
    """Rules of a Role: one for each resource. Leases are limited to ours by name, where the API can do
    that."""
    verbs: dict[tuple[str, str, bool], list[str]] = {}
    for call in calls:
        # A create is authorized before the object has a name.
        named = call.resource == LEASES and call.verb is not Verb.CREATE
        verbs.setdefault((call.resource.group, call.resource.rbac_name, named), []).append(str(call.verb))
    return [
        {"apiGroups": [group], "resources": [resource], "verbs": wanted}
        | ({"resourceNames": [lease_name]} if named else {})
        for (group, resource, named), wanted in verbs.items()
    ]


def roles(*, namespaced: bool, name: str = DEFAULT_NAME, lease_name: str = DEFAULT_NAME) -> list[Json]:
    """The roles to apply.

    Namespaced: one Role, to be applied in every watched namespace (there is a Lease in each). Else a
    ClusterRole, and a Role for the namespace of the one Lease.
    """
    if namespaced:
        return [_role("Role", name, rules(CALLS, lease_name))]
    on_leases = [call for call in CALLS if call.resource == LEASES]
    others = [call for call in CALLS if call.resource != LEASES]
    return [
        _role("ClusterRole", name, rules(others)),
        _role("Role", f"{name}-lease", rules(on_leases, lease_name)),
    ]


def reasons() -> list[str]:
    """A line for each permission: what it is for."""
    return [f"{call.verb} {call.resource.rbac_name}: {call.why}" for call in CALLS]


def _role(kind: str, name: str, wanted: list[Json]) -> Json:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name},
        "rules": wanted,
    }
