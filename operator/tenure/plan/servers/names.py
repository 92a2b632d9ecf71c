"""How everything that belongs to a ControlServer is called.

Names follow from the object and the ordinal of a pod, so each is found again after a crash without a list or a search.
"""

import hashlib
from collections.abc import Mapping

from tenure.model.control_server import KIND, ControlServer
from tenure.model.ids import NAME_LIMIT, OWNER_DIGITS, child_name, family_name, ordinal_of
from tenure.model.objects import API_VERSION
from tenure.model.pods import ROLE_LABEL

SERVER_ROLE = "server"
BACKEND_ROLE = "backend"
SERVER_LABEL = "tenure.dev/control-server"
"""The name of the ControlServer."""
ORDINAL_LABEL = "tenure.dev/ordinal"
"""The number of a server's pod: what a disruption budget selects just this one by."""
INSTALLATION_LABEL = "tenure.dev/installation"
"""Whose volume a claim is. It has no owner, and outlives the object."""
VACANCY_ANNOTATION = "tenure.dev/vacancy"
"""``Record.vacancy`` at the time when the pod was made."""
HASH_ANNOTATION = "tenure.dev/server-hash"
MANAGED_BY = {"app.kubernetes.io/managed-by": "tenure"}
RESERVED = "tenure.dev/"
"""Labels and annotations below this are never an author's."""

_HANDOVER = "-handover"


def pod_name(server: ControlServer, ordinal: int) -> str:
    """The name of the server's pod number ``ordinal`` (1 or more), and of its Secret."""
    return child_name(server.name, server.uid, ordinal)


def ordinal(server: ControlServer, name: str) -> int | None:
    """The number of the pod with this name; None when it is not named by our rules."""
    return ordinal_of(name, server.name, server.uid)


def bootstrap_name(pod: str) -> str:
    """The Secret from which the pod starts."""
    return f"{pod}-bootstrap"


def handover_name(object_name: str) -> str:
    """The Secret from which the backend takes over. It is told by the object's name alone, so that a Role can name it:
    ``<object>-handover``. A name that is too long for that is cut, and told apart by a hash.
    """
    room = NAME_LIMIT - len(_HANDOVER)
    if len(object_name) <= room:
        return f"{object_name}{_HANDOVER}"
    digits = hashlib.sha256(object_name.encode()).hexdigest()[:OWNER_DIGITS]
    return f"{object_name[: room - OWNER_DIGITS - 1].rstrip('-.')}-{digits}{_HANDOVER}"


def budget_name(server: ControlServer) -> str:
    """The PodDisruptionBudget."""
    return family_name(server.name, server.uid)


def policy_name(server: ControlServer) -> str:
    """The NetworkPolicy."""
    return family_name(server.name, server.uid)


def claim_name(server: ControlServer) -> str:
    """The volume claim. It belongs to the installation: an object that is made again under its old name, with the
    installation's id, finds it."""
    return family_name(server.name, server.effective_installation_id)


def server_name(identity: str) -> str:
    """The DNS name in the certificate of the server with this identity. It resolves nowhere: addresses are unknown
    when it is made."""
    return f"{identity}.tenure.invalid"


def labels(server: ControlServer) -> dict[str, str]:
    """Labels of everything but the claim."""
    return {ROLE_LABEL: SERVER_ROLE, SERVER_LABEL: server.name, **MANAGED_BY}


def secret_labels(server: ControlServer) -> dict[str, str]:
    """Labels of its Secrets."""
    return {SERVER_LABEL: server.name, **MANAGED_BY}


def claim_labels(server: ControlServer) -> dict[str, str]:
    """Labels by which a claim is known to be the installation's."""
    return {
        SERVER_LABEL: server.name,
        INSTALLATION_LABEL: server.effective_installation_id,
        **MANAGED_BY,
    }


def owner(server: ControlServer) -> dict[str, str | bool]:
    """The owner reference of the object's children."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": server.name,
        "uid": server.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def pod_owner(name: str, uid: str) -> dict[str, str | bool]:
    """The owner reference of what goes with a pod: its server's Secret."""
    return {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid, "controller": True}


def without_reserved(author: Mapping[str, str] | None) -> dict[str, str]:
    """An author's labels or annotations without those that are the operator's to set."""
    return {key: value for key, value in (author or {}).items() if not key.startswith(RESERVED)}
