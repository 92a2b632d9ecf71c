"""The pod template of a control server: merged with what the operator renders, and carried verbatim."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from tenure.model.verbatim import Refused, ShownAs, judged_by, refusals, refused_in
from tenure.model.wire import WireModel, rule, rules

SERVER_CONTAINER = "server"
"""The name of the container that is the control server; every other one of the template is carried beside it."""
MIN_GRACE = 35
"""Seconds: the server takes 25 to stop its instances, and some to write its last lines."""
MAX_GRACE = 3600

_HOST_NAME = "servers are told apart by the pod's own name, which is the host name that they see"
_GRACE = f"terminationGracePeriodSeconds must be from {MIN_GRACE} to {MAX_GRACE} seconds, or left out"
NOT_OF_THE_SERVER: dict[str, str] = {
    "command": f"command must be left out of the container {SERVER_CONTAINER}: the operator knows how to start it",
    "args": f"args must be left out of the container {SERVER_CONTAINER}: the operator knows how to start it",
    "livenessProbe": (
        f"livenessProbe must be left out of the container {SERVER_CONTAINER}: a probe that fails would end every agent"
    ),
}
"""Fields that may not be set of the control server's own container, with their sentences."""

REFUSED: dict[str, Refused] = {
    "hostNetwork": Refused(
        "hostNetwork must be left out: who may reach a server is told by addresses of pods", harmless=False
    ),
    "hostname": Refused(f"hostname must be left out: {_HOST_NAME}"),
    "hostnameOverride": Refused(f"hostnameOverride must be left out: {_HOST_NAME}"),
    "setHostnameAsFQDN": Refused(f"setHostnameAsFQDN must be left out: {_HOST_NAME}", harmless=False),
    "restartPolicy": Refused(
        "restartPolicy must be Never or left out: one pod is one lifetime of a server; "
        "after its end the operator makes another",
        harmless="Never",
    ),
}
"""Fields of a pod spec that a server's template may not set."""


def _refusals() -> list[dict[str, str]]:
    grace = "self.terminationGracePeriodSeconds"
    bounds = f"!has({grace}) || ({grace} >= {MIN_GRACE} && {grace} <= {MAX_GRACE})"
    return [*refusals(REFUSED), rule(bounds, _GRACE, field=".terminationGracePeriodSeconds")]


class ServerPodMetadata(WireModel):
    """Labels and annotations for the server's pods; name and namespace follow from the ControlServer."""

    labels: Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=256)] | None = None
    """Labels for the server's pods. Those under tenure.dev/ are the operator's."""

    annotations: (
        Annotated[dict[str, Annotated[str, Field(max_length=262144)]], Field(max_length=256)] | None
    ) = None
    """Annotations for the server's pods. Those under tenure.dev/ are the operator's."""

    creation_timestamp: Annotated[str, Field(max_length=64)] | None = None
    """Passed over. It is here because kubectl create writes it into templates, as null."""


_Words = Annotated[tuple[Annotated[str, Field(max_length=131072)], ...], Field(max_length=1024)]


class _Verbatim(WireModel):
    """Fields as in any pod."""

    model_config = ConfigDict(extra="allow")


class ServerContainer(WireModel):
    """A container as in any pod; the API server checks it when the pod is made."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra=rules(
            *(
                rule(
                    f"self.name != '{SERVER_CONTAINER}' || !has(self.{name})",
                    sentence,
                    reason="FieldValueForbidden",
                    field=f".{name}",
                )
                for name, sentence in NOT_OF_THE_SERVER.items()
            )
        ),
    )

    name: Annotated[str, Field(max_length=63)]
    """The container's name. What is said about the one named server is merged into the control server's own;
    every other one is carried beside it."""

    command: _Words | None = None
    """As in any container, but not of the control server itself."""

    args: _Words | None = None
    """As in any container, but not of the control server itself."""

    liveness_probe: _Verbatim | None = None
    """As in any container, but not of the control server itself."""


class PodOS(WireModel):
    """The operating system that a pod needs."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(max_length=63)] | None = None
    """Its name: linux or windows. On Windows agents do not survive their backend."""


class ServerPodSpec(WireModel):
    """A pod spec as in any Deployment, of which every part may be left out, except for what the rules refuse."""

    model_config = ConfigDict(extra="allow", json_schema_extra=rules(*_refusals()))

    containers: Annotated[tuple[ServerContainer, ...], Field(max_length=64)] | None = None
    """Containers. The one named server is the control server; every other one is carried beside it."""

    node_selector: (
        Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=256)] | None
    ) = None
    """Labels of the nodes that the pod may run on. With kubernetes.io/os set to windows agents do not survive
    their backend."""

    os: PodOS | None = None
    """The operating system that the pod needs."""

    host_network: bool | None = None
    """Not allowed for control servers."""

    hostname: Annotated[str, Field(max_length=253)] | None = None
    """Not allowed for control servers."""

    hostname_override: Annotated[str, Field(max_length=253)] | None = None
    """Not allowed for control servers."""

    set_hostname_as_fqdn: bool | None = Field(default=None, alias="setHostnameAsFQDN")
    """Not allowed for control servers."""

    termination_grace_period_seconds: int | None = None
    """How long the server may take to stop its agents, 35 seconds or more. 35 when left out."""

    restart_policy: Annotated[str, Field(max_length=16)] | None = None
    """Never, which is also what is taken when nothing is said."""


class ServerPodTemplate(WireModel):
    """A pod template, as in a Deployment, of which every part may be left out."""

    metadata: ServerPodMetadata | None = None
    """Labels and annotations for the server's pods."""

    spec: ServerPodSpec | None = None
    """The pod spec, merged with what the operator makes of the server."""


def refusal_of_server(template: Mapping[str, Any]) -> str | None:
    """The sentence that refuses ``template``, or None: the CRD's own rules again, for objects older than a rule.

    Windows is none of them: what cannot survive is reported, not left unread.
    """
    spec = template.get("spec")
    if spec is None:
        return None
    if not isinstance(spec, Mapping):
        return "spec must be a pod spec, or left out"
    containers = spec.get("containers") or []
    if not isinstance(containers, list) or not all(isinstance(c, Mapping) for c in containers):
        return "containers must be a list of containers, or left out"
    own: Mapping[str, Any] = next((c for c in containers if c.get("name") == SERVER_CONTAINER), {})
    for name, sentence in NOT_OF_THE_SERVER.items():
        if name in own:
            return sentence
    if refused := refused_in(spec, REFUSED):
        return refused
    grace = spec.get("terminationGracePeriodSeconds", MIN_GRACE)
    if not isinstance(grace, int) or not MIN_GRACE <= grace <= MAX_GRACE:
        return _GRACE
    return None


VerbatimServerTemplate = Annotated[dict[str, Any], judged_by(refusal_of_server), ShownAs(ServerPodTemplate)]
"""A server's pod template exactly as it is stored: a plain dict, not to be changed."""
