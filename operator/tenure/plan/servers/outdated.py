"""Whether a server is still what its author asks for.

A server that hosts instances is never touched for that; an empty one is replaced.
"""

from collections.abc import Mapping

from tenure.model.control_server import ControlServer
from tenure.model.ids import template_hash
from tenure.plan.servers.authors import server_container
from tenure.plan.servers.names import HASH_ANNOTATION


def image_of(server: ControlServer, default: str) -> str:
    """The image of the server: the spec's, the template's, or ``default``, which is the operator's own."""
    if server.spec.server.image:
        return server.spec.server.image
    given = server_container(server.spec.server_pod_spec).get("image")
    return str(given) if given else default


def server_hash(server: ControlServer, default_image: str) -> str:
    """A short hash of everything in the spec that a server gets at its start, and of its image.

    It covers nothing that the operator adds by itself, so a newer operator that adds more replaces no server; one with
    another image does, where the spec names none.
    """
    spec = server.spec
    return template_hash(
        {
            "image": image_of(server, default_image),
            "resources": spec.server.resources,
            "template": spec.server.template,
            "storage": spec.storage.to_wire(),
            "unownedPeriodSeconds": spec.unowned_period_seconds,
            "idleTimeoutSeconds": spec.idle_timeout_seconds,
            "detachedEventLimit": spec.detached_event_limit,
        }
    )


def outdated(server: ControlServer, default_image: str, annotations: Mapping[str, str]) -> bool:
    """Whether the pod with these annotations was made of another spec or image. A pod that does not say what it was
    made of is left as it is."""
    made_of = annotations.get(HASH_ANNOTATION)
    return made_of is not None and made_of != server_hash(server, default_image)


def to_be_replaced(*, outdated: bool, hosted: int | None) -> bool:
    """Whether the server makes way for a new one: only when it is known to host nothing."""
    return outdated and hosted == 0
