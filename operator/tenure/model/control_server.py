"""The ControlServer as Python sees it. The CRD is generated from these models (``tenure.model.schema``).

Every field's docstring is its text in ``kubectl explain``.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, model_validator

from tenure.model.adoption import AgentSurvival, HandoverPolicy
from tenure.model.agent_profile import AgentProfile
from tenure.model.objects import DNS_LABEL, Resource, read_object, read_status
from tenure.model.selector import Selector
from tenure.model.server_status import ServerStatus
from tenure.model.server_template import VerbatimServerTemplate
from tenure.model.wire import Matching, WireModel, ranged, rule, rules

KIND = "ControlServer"
PLURAL = "controlservers"

MAX_PERIOD = 30 * 24 * 3600
READ_BUDGET_MS = 6000
"""What one read of recovery may take with all its retries, at most; a fifth of the deadline, if that is less."""

_ID_STAYS = (
    "installationID must stay as it is, and cannot be given or taken away later: it is a part of the path of the "
    "installation's home, and of every proof of ownership"
)
_READS = (
    "readTimeoutMilliseconds x (readRetries + 1) must be at most 6000, and at most a fifth of deadlineSeconds "
    "(2000, 2 and 30 when left out)"
)
_ONE_STORAGE = "at most one of emptyDir and volumeClaimTemplate must be given"
_WINDOWS = (
    "agentSurvival must be Disabled for a server on Windows nodes (platform_windows): no agent survives its backend "
    "there"
)

_INSTALLATION = Matching(
    f"^{DNS_LABEL}$",
    "must be a name for the installation: lower case letters, digits and dashes, with a letter or digit at both ends",
)
_CONTAINER = Matching(
    f"^{DNS_LABEL}$",
    "must be the name of a container: lower case letters, digits and dashes, with a letter or digit at both ends",
)
_IMAGE = Matching(r"^[^\s]+$", "must be the name of an image, without spaces")

_ON_WINDOWS = (
    "((has({spec}.os) && has({spec}.os.name) && {spec}.os.name == 'windows')"
    " || (has({spec}.nodeSelector) && 'kubernetes.io/os' in {spec}.nodeSelector"
    " && {spec}.nodeSelector['kubernetes.io/os'] == 'windows'))"
).format(spec="self.server.template.spec")
# Only what the object itself shows. That the operator has no store, or no access to Secrets, is not in it: a policy of
# the chart refuses Enabled then, and status says Unavailable whatever was let through.
_SURVIVAL_POSSIBLE = (
    "!has(self.agentSurvival) || self.agentSurvival == 'Disabled' || !has(self.server)"
    f" || !has(self.server.template) || !has(self.server.template.spec) || !{_ON_WINDOWS}"
)


class Backend(WireModel):
    """The program that drives the server: one of the pods that match, for as long as its main container runs."""

    selector: Selector
    """The labels of the backend's pods, in this namespace. They also carry tenure.dev/role: backend."""

    container: Annotated[str, Field(max_length=63), _CONTAINER] | None = None
    """The main container of these pods: the backend ends when it ends. The first one when left out."""

    handover: HandoverPolicy = HandoverPolicy.ON_READY
    """When another pod takes over. OnEnd: when the present one has ended or is being deleted. OnReady: also when
    a newer pod of another revision has its containers ready, so that a rollout hands over."""


class Server(WireModel):
    """The pod of the control server. A change never touches a server that hosts agents."""

    image: Annotated[str, Field(max_length=1024), _IMAGE] | None = None
    """The image of the server: the operator's own when left out. It has the programs of the agents in it, and
    tenure."""

    resources: dict[str, Any] | None = None
    """Requests and limits of the server with all its agents, as in any container."""

    template: VerbatimServerTemplate | None = None
    """A pod template that is merged with the server's own: further containers, volumes, tolerations, labels."""


class ClaimMetadata(WireModel):
    """Labels and annotations for the claim; its name follows from the ControlServer."""

    labels: Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=256)] | None = None
    """Labels for the claim. Those under tenure.dev/ are the operator's."""

    annotations: (
        Annotated[dict[str, Annotated[str, Field(max_length=262144)]], Field(max_length=256)] | None
    ) = None
    """Annotations for the claim."""


class VolumeClaimTemplate(WireModel):
    """A volume claim, as in a StatefulSet."""

    metadata: ClaimMetadata | None = None
    """Labels and annotations for the claim."""

    spec: dict[str, Any]
    """The spec of the claim, as in any PersistentVolumeClaim; the API server checks it when the claim is made."""


class Storage(WireModel):
    """Where the installation's home and the workspaces are."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!has(self.emptyDir) || !has(self.volumeClaimTemplate)",
                _ONE_STORAGE,
                reason="FieldValueForbidden",
                field=".emptyDir",
            )
        )
    )

    empty_dir: dict[str, Any] | None = None
    """A directory that lives as long as the pod, with the fields of any emptyDir. This is what is taken when
    nothing is given."""

    volume_claim_template: VolumeClaimTemplate | None = None
    """A claim that is made once, and that outlives the pod and the ControlServer."""

    @model_validator(mode="after")
    def _at_most_one(self) -> Self:
        if self.empty_dir is not None and self.volume_claim_template is not None:
            raise ValueError(_ONE_STORAGE)
        return self


class Recovery(WireModel):
    """How long recovery may take after a backend has started."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                f"self.readTimeoutMilliseconds * (self.readRetries + 1) <= {READ_BUDGET_MS}"
                " && self.readTimeoutMilliseconds * (self.readRetries + 1) * 5 <= self.deadlineSeconds * 1000",
                _READS,
                field=".readTimeoutMilliseconds",
            )
        )
    )

    deadline_seconds: Annotated[int, ranged(1, 300, "seconds")] = 30
    """The time for all of it, counted from the first contact with the server that was left. What has no outcome
    by then is not re-tracked."""

    read_timeout_milliseconds: Annotated[int, ranged(100, READ_BUDGET_MS, "milliseconds")] = 2000
    """How long one read from the server may take."""

    read_retries: Annotated[int, ranged(0, 10, "retries")] = 2
    """How often a read without an answer is tried again."""

    @model_validator(mode="after")
    def _reads_fit(self) -> Self:
        longest = self.read_timeout_milliseconds * (self.read_retries + 1)
        if longest > READ_BUDGET_MS or longest * 5 > self.deadline_seconds * 1000:
            raise ValueError(_READS)
        return self


class ControlServerSpec(WireModel):
    """What is wanted of the control server."""

    # Transition rules of a field are not asked when the field comes or goes: they stand here.
    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "has(self.installationID) == has(oldSelf.installationID)"
                " && (!has(self.installationID) || self.installationID == oldSelf.installationID)",
                _ID_STAYS,
                field=".installationID",
            ),
            rule(_SURVIVAL_POSSIBLE, _WINDOWS, reason="FieldValueForbidden", field=".agentSurvival"),
        )
    )

    agent_survival: AgentSurvival = AgentSurvival.DISABLED
    """Enabled: agents outlive their backend, and the next one goes on with them. Disabled: the server is stopped
    when its backend ends. A change takes effect at the next start of the backend."""

    installation_id: Annotated[str, Field(max_length=63), _INSTALLATION] | None = Field(
        default=None, alias="installationID"
    )
    """The id under which sessions and servers of this installation are recorded. The object's UID when left out.
    It stays as it was given: set it if the installation is to outlive this object."""

    backend: Backend | None = None
    """The program that drives the server. The operator itself when left out."""

    server: Server = Server()
    """The pod of the control server. A change never touches a server that hosts agents."""

    storage: Storage = Storage()
    """Where the installation's home and the workspaces are: a directory that lives as long as the pod, unless
    said otherwise."""

    recovery: Recovery = Recovery()
    """How long recovery may take after a backend has started."""

    unowned_period_seconds: Annotated[int, ranged(60, MAX_PERIOD, "seconds")] = 600
    """How long the server lives on without a backend before it stops its agents and itself. A period that is not
    shorter than idleTimeoutSeconds becomes half of that, and status.adjustments says so."""

    idle_timeout_seconds: Annotated[int, ranged(0, MAX_PERIOD, "seconds")] = 3600
    """An agent that has done nothing for this long is stopped. 0 turns that off."""

    detached_event_limit: Annotated[int, ranged(1, 10000, "events")] = 100
    """How many events the server keeps for each agent while nobody takes them. Then the agent waits; nothing is
    lost."""

    agent_profiles: Annotated[
        tuple[AgentProfile, ...],
        Field(
            max_length=32,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = ()
    """How agents are started, by name. An agent that runs keeps the arguments that it was started with."""

    @model_validator(mode="after")
    def _profiles_are_told_apart(self) -> Self:
        if len({profile.name for profile in self.agent_profiles}) != len(self.agent_profiles):
            raise ValueError("agentProfiles must name each profile once")
        return self

    @property
    def server_pod_spec(self) -> Mapping[str, Any]:
        """The pod spec of the server's template; empty when there is none. It decides about Windows."""
        return (self.server.template or {}).get("spec") or {}

    def profile(self, name: str) -> AgentProfile | None:
        """The profile of this name, as it is now."""
        return next((profile for profile in self.agent_profiles if profile.name == name), None)


class ControlServer(Resource):
    """A server in a pod of its own that hosts agents, and that outlives the backend which drives them."""

    spec: ControlServerSpec
    status: ServerStatus = ServerStatus()

    @property
    def effective_installation_id(self) -> str:
        """The id of the installation: the one that was given, or else the object's UID. Never what status says."""
        return self.spec.installation_id or self.metadata.uid


def parse_control_server(raw: Mapping[str, Any]) -> ControlServer:
    """The ControlServer in ``raw``, the JSON object of the API server. What is carried verbatim is not copied.

    Raises ``InvalidResource`` when a value is none that this version knows: whoever does not understand an
    object does not act upon it. Survival that is not available is no such value.
    """
    return read_object(ControlServer, raw)


def parse_server_status(raw: Mapping[str, Any]) -> ServerStatus:
    """The status alone, of an object whose spec may be unreadable. Raises ``InvalidResource``."""
    return read_status(ServerStatus, raw)
