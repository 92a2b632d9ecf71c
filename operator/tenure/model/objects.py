"""What objects of the API have in common: their group, their metadata, names of others, and how they are read."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, ValidationError

from tenure.model.errors import InvalidResource
from tenure.model.wire import Matching, Moment, WireModel

GROUP = "tenure.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
NAME_LIMIT = 63

DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"

_SECRET_NAME = Matching(
    rf"^{DNS_LABEL}(\.{DNS_LABEL})*$",
    "must be the name of a Secret in the same namespace: lower case letters, digits, dashes and dots",
)
_SECRET_KEY = Matching(
    r"^[-._a-zA-Z0-9]+$", "must be a key of that Secret: letters, digits, dashes, dots and underscores"
)


class SecretKeyRef(WireModel):
    """A key of a Secret in the same namespace."""

    model_config = ConfigDict(json_schema_extra={"x-kubernetes-map-type": "atomic"})

    name: Annotated[str, Field(max_length=253), _SECRET_NAME]
    """The name of the Secret."""

    key: Annotated[str, Field(max_length=253), _SECRET_KEY]
    """The key whose value is taken."""


class Metadata(WireModel):
    """What the operator uses of an object's metadata."""

    name: str
    namespace: str
    uid: Annotated[str, Field(min_length=1)]
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: Moment | None = None
    deletion_timestamp: Moment | None = None


class Resource(WireModel):
    """A custom resource of ours, whatever its kind."""

    metadata: Metadata

    @property
    def name(self) -> str:
        """The object's name."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """The object's namespace."""
        return self.metadata.namespace

    @property
    def uid(self) -> str:
        """The object's UID, by which its children know it."""
        return self.metadata.uid

    @property
    def key(self) -> tuple[str, str]:
        """``(namespace, name)``."""
        return self.metadata.namespace, self.metadata.name

    @property
    def deleting(self) -> bool:
        """Whether somebody has deleted the object."""
        return self.metadata.deletion_timestamp is not None


R = TypeVar("R", bound=Resource)
S = TypeVar("S", bound=WireModel)


def read_object(kind: type[R], raw: Mapping[str, Any]) -> R:
    """The resource in ``raw``, the JSON object of the API server. Parts that are carried verbatim are kept as
    they are, not copied.

    Raises ``InvalidResource`` when a value is none that this version knows: whoever does not understand an
    object does not act upon it.
    """
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        problems = tuple(
            _sentence(problem) for problem in error.errors(include_url=False, include_input=False)
        )
        raise InvalidResource(_name_of(raw), problems) from None


def read_status(kind: type[S], raw: Mapping[str, Any]) -> S:
    """The status alone, of an object whose spec may be unreadable. Raises ``InvalidResource``."""
    try:
        return kind.model_validate(raw.get("status") or {})
    except ValidationError:
        raise InvalidResource(_name_of(raw), ("status: not understood",)) from None


def _sentence(problem: Mapping[str, Any]) -> str:
    path = ".".join(str(part) for part in problem["loc"])
    said = str(problem["msg"]).removeprefix("Value error, ")
    return f"{path}: {said[0].lower() + said[1:] if said.startswith(('Input', 'Field')) else said}"


def _name_of(raw: Mapping[str, Any]) -> str:
    metadata = raw.get("metadata")
    if not isinstance(metadata, Mapping):
        return "an object without metadata"
    return f"{metadata.get('namespace', '?')}/{metadata.get('name', '?')}"
