"""``spec.agentProfiles`` of a ControlServer: how agents are started, by name."""

from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from tenure.model.adoption import HistorySetting, PermissionPolicy
from tenure.model.hosted import ProfileName
from tenure.model.objects import SecretKeyRef
from tenure.model.wire import Matching, WireModel, rule, rules

_VARIABLE = Matching(
    r"^[-._a-zA-Z][-._a-zA-Z0-9]*$",
    "must be the name of a variable: letters, digits, dashes, dots and underscores, not starting with a digit",
)
_ONE_SOURCE = "exactly one of value and valueFrom must be given"
_NO_NUL = Field(pattern=r"^[^\x00]*$")
"""As a pattern, for a rule on so many and so long texts would cost more than an API server permits."""

Argument = Annotated[str, Field(max_length=4096), _NO_NUL]


class VariableSource(WireModel):
    """Where the value of a variable comes from."""

    secret_key_ref: SecretKeyRef
    """A key of a Secret in the same namespace. It is read when an agent is started."""


class Variable(WireModel):
    """A variable of the agent's environment."""

    model_config = ConfigDict(
        json_schema_extra=rules(rule("has(self.value) != has(self.valueFrom)", _ONE_SOURCE))
    )

    name: Annotated[str, Field(max_length=253), _VARIABLE]
    """The name of the variable."""

    value: Annotated[str, Field(max_length=32768), _NO_NUL] | None = Field(default=None, repr=False)
    """The value, for everybody to read who may read this object. Secrets come from valueFrom."""

    value_from: VariableSource | None = None
    """Where the value comes from."""

    @model_validator(mode="after")
    def _from_one_source(self) -> Self:
        if (self.value is None) == (self.value_from is None):
            raise ValueError(_ONE_SOURCE)
        return self


class AgentProfile(WireModel):
    """How agents of one kind are started."""

    name: ProfileName
    """The name by which sessions refer to the profile."""

    command: Annotated[tuple[Argument, ...], Field(min_length=1, max_length=64)]
    """The program and its arguments. It speaks the Agent Client Protocol on its standard input and output."""

    continue_args: Annotated[tuple[Argument, ...], Field(max_length=64)] = ()
    """Further arguments for an agent that is started for a session which has had one before."""

    env: Annotated[
        tuple[Variable, ...],
        Field(
            max_length=64,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = ()
    """Variables of the agent's environment."""

    history: HistorySetting = HistorySetting.LOAD
    """Load: an agent that is started for a session which has had one before loads what was said in it. Discard:
    it begins anew."""

    permissions: PermissionPolicy = PermissionPolicy.DENY
    """How an agent's requests for permission are answered where no backend is there to ask: Deny, or AllowOnce.
    With a backend it is the backend that answers."""

    @model_validator(mode="after")
    def _names_recur_nowhere(self) -> Self:
        if len({variable.name for variable in self.env}) != len(self.env):
            raise ValueError("env must name each variable once")
        return self
