"""The pod template of an agent: carried verbatim, with only as much shape as the rules need.

A template is never modelled as a whole: what the operator does not know has to reach the API server as it was
written, and the API server judges it with its own words.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from tenure.model.verbatim import Refused, ShownAs, judged_by, refusals, refused_in
from tenure.model.wire import WireModel, rule, rules

_HOST_NAME = "agents are told apart by the pod's own name, which is the host name that they see"

REFUSED: dict[str, Refused] = {
    "hostNetwork": Refused(
        "hostNetwork must be left out: agents run in the pod network, under their pods' own names",
        harmless=False,
    ),
    "hostname": Refused(f"hostname must be left out: {_HOST_NAME}"),
    "hostnameOverride": Refused(f"hostnameOverride must be left out: {_HOST_NAME}"),
    "setHostnameAsFQDN": Refused(f"setHostnameAsFQDN must be left out: {_HOST_NAME}", harmless=False),
    "terminationGracePeriodSeconds": Refused(
        "terminationGracePeriodSeconds must be left out: spec.drain.gracePeriodSeconds sets it"
    ),
    "restartPolicy": Refused(
        "restartPolicy must be Never or left out: one pod is one lifetime of the agent; "
        "spec.restartPolicy says what follows its end",
        harmless="Never",
    ),
}
"""Fields of a pod spec that an agent's template may not set."""

_NO_SPEC = "spec must be given: a pod spec with at least one container"
_NO_CONTAINER = "containers must name at least one container; the first one is the agent"


class PodTemplateMetadata(WireModel):
    """Labels and annotations for the agent's pods; their name and namespace follow from the AgentProcess."""

    labels: Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=256)] | None = None
    """Labels for the agent's pods. Those under tenure.dev/ are the operator's."""

    annotations: (
        Annotated[dict[str, Annotated[str, Field(max_length=262144)]], Field(max_length=256)] | None
    ) = None
    """Annotations for the agent's pods."""

    creation_timestamp: Annotated[str, Field(max_length=64)] | None = None
    """Passed over. It is here because kubectl create writes it into templates, as null."""


class Container(WireModel):
    """A container as in any pod; the API server checks it when the pod is made."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(max_length=63)]
    """The container's name."""


class PodTemplateSpec(WireModel):
    """A pod spec as in any Deployment, except for what the rules refuse."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra=rules(
            rule(
                "has(self.containers) && size(self.containers) > 0",
                _NO_CONTAINER,
                reason="FieldValueRequired",
                field=".containers",
            ),
            *refusals(REFUSED),
        ),
    )

    containers: Annotated[tuple[Container, ...], Field(max_length=64)] | None = None
    """The containers. The first one is the agent: when it ends, the pod is done, whatever the others do."""

    host_network: bool | None = None
    """Not allowed for agents."""

    hostname: Annotated[str, Field(max_length=253)] | None = None
    """Not allowed for agents."""

    hostname_override: Annotated[str, Field(max_length=253)] | None = None
    """Not allowed for agents."""

    set_hostname_as_fqdn: bool | None = Field(default=None, alias="setHostnameAsFQDN")
    """Not allowed for agents."""

    termination_grace_period_seconds: int | None = None
    """Not allowed here: spec.drain.gracePeriodSeconds is the grace of the pod."""

    restart_policy: Annotated[str, Field(max_length=16)] | None = None
    """Never, which is also what is taken when nothing is said."""


class PodTemplate(WireModel):
    """A pod template, as in a Deployment."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "has(self.spec)",
                _NO_SPEC,
                reason="FieldValueRequired",
                field=".spec",
            )
        )
    )

    metadata: PodTemplateMetadata | None = None
    """Labels and annotations for the agent's pods."""

    spec: PodTemplateSpec | None = None
    """The pod spec, carried to the pod as it is written here."""


def refusal_of(template: Mapping[str, Any]) -> str | None:
    """The sentence that refuses ``template``, or None: the CRD's own rules again, for objects older than a
    rule."""
    spec = template.get("spec")
    if not isinstance(spec, Mapping):
        return _NO_SPEC
    containers = spec.get("containers")
    if (
        not isinstance(containers, list)
        or not containers
        or not all(isinstance(c, Mapping) for c in containers)
    ):
        return _NO_CONTAINER
    return refused_in(spec, REFUSED)


VerbatimTemplate = Annotated[dict[str, Any], judged_by(refusal_of), ShownAs(PodTemplate)]
"""A pod template exactly as it is stored: a plain dict, not to be changed."""
