"""The CustomResourceDefinitions, generated from the models.

A structural schema knows neither references nor alternatives nor null, so what pydantic writes is folded:
references are put in place, "or null" goes (a field that may be absent is simply not required), and "more
fields allowed" becomes ``x-kubernetes-preserve-unknown-fields``.

Source: https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tenure.model import control_server, resources
from tenure.model.columns import AGENT_PROCESS, CONTROL_SERVER
from tenure.model.objects import GROUP, VERSION, Resource
from tenure.model.server_status import ServerStatus
from tenure.model.status import Status
from tenure.model.wire import WireModel, rule

Json = dict[str, Any]

NAME_LIMIT_RULE = rule(
    "self.metadata.name.size() <= 63",
    "metadata.name must have at most 63 characters, so that names derived from it stay unique and readable",
)

_ORDER = ("type", "format", "description", "default", "enum", "required", "properties", "items")
_DROPPED = ("title", "propertyNames", "$defs")


@dataclass(frozen=True, slots=True)
class _Kind:
    """What is different from one kind to the next."""

    kind: str
    plural: str
    short: tuple[str, ...]
    resource: type[Resource]
    spec: type[WireModel]
    status: type[WireModel]
    columns: tuple[Json, ...]
    selectable: tuple[str, ...]


def crds() -> dict[str, Json]:
    """Every CRD, by the name of the file that it goes into."""
    return {"agentprocess.yaml": agent_process_crd(), "controlserver.yaml": control_server_crd()}


def agent_process_crd() -> Json:
    """The CRD of AgentProcess as a plain dict, ready for YAML. The same models give the same dict, order
    included."""
    return _definition(
        _Kind(
            kind=resources.KIND,
            plural=resources.PLURAL,
            short=("ap",),
            resource=resources.AgentProcess,
            spec=resources.AgentProcessSpec,
            status=Status,
            columns=AGENT_PROCESS,
            selectable=(".spec.desiredState", ".status.phase"),
        )
    )


def control_server_crd() -> Json:
    """The CRD of ControlServer, likewise."""
    return _definition(
        _Kind(
            kind=control_server.KIND,
            plural=control_server.PLURAL,
            # kubectl takes cs for the core ComponentStatus, and names ours in a warning; csrv is ours alone.
            short=("cs", "csrv"),
            resource=control_server.ControlServer,
            spec=control_server.ControlServerSpec,
            status=ServerStatus,
            columns=CONTROL_SERVER,
            selectable=(".spec.agentSurvival", ".status.phase"),
        )
    )


def _definition(of: _Kind) -> Json:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{of.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": of.kind,
                "listKind": f"{of.kind}List",
                "plural": of.plural,
                "singular": of.kind.lower(),
                "shortNames": list(of.short),
                "categories": ["tenure"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": list(of.columns),
                    "selectableFields": [{"jsonPath": path} for path in of.selectable],
                    "schema": {"openAPIV3Schema": _root(of)},
                }
            ],
        },
    }


def _root(of: _Kind) -> Json:
    return {
        "type": "object",
        "description": _one_line(of.resource.__doc__ or ""),
        "required": ["spec"],
        "x-kubernetes-validations": [NAME_LIMIT_RULE],
        "properties": {
            "apiVersion": {"type": "string", "maxLength": 253},
            "kind": {"type": "string", "maxLength": 63},
            "metadata": {"type": "object"},
            "spec": structural(of.spec),
            "status": _without_defaults(structural(of.status)),
        },
    }


def structural(model: type[WireModel]) -> Json:
    """The structural schema of ``model``: names as on the wire, nothing that an API server refuses in a
    CRD."""
    written = model.model_json_schema(mode="validation", by_alias=True)
    return _fold(written, written.get("$defs", {}))


def _fold(node: Mapping[str, Any], definitions: Mapping[str, Json]) -> Json:
    node = _resolve(node, definitions)
    folded: Json = {}
    for key, value in node.items():
        if key in _DROPPED or (key == "default" and value is None) or value == []:
            continue
        match key:
            case "properties":
                folded[key] = {name: _fold(field, definitions) for name, field in value.items()}
            case "items":
                folded[key] = _fold(value, definitions)
            case "additionalProperties" if isinstance(value, bool):
                folded |= {"x-kubernetes-preserve-unknown-fields": True} if value else {}
            case "additionalProperties":
                folded[key] = _fold(value, definitions)
            case "default" if isinstance(value, dict):
                # In full: the API server tries the rules on a default before it fills in the fields' own ones.
                folded[key] = {name: item for name, item in value.items() if item is not None}
            case "const":
                folded["enum"] = [value]
            case "description":
                folded[key] = _one_line(value)
            case _:
                folded[key] = value
    if "minimum" in folded and "maximum" in folded:
        # kubectl explain shows no limits of its own accord.
        folded["description"] += f" From {folded['minimum']} to {folded['maximum']}."
    return dict(sorted(folded.items(), key=_place))


def _place(entry: tuple[str, Any]) -> tuple[int, str]:
    """What a reader looks for first comes first, whatever order pydantic writes in."""
    key = entry[0]
    return (_ORDER.index(key) if key in _ORDER else len(_ORDER), key)


def _resolve(node: Mapping[str, Any], definitions: Mapping[str, Json]) -> Json:
    """``node`` with a reference or an "or null" replaced by what it stands for; what stands beside it
    wins."""
    beside = dict(node)
    while "$ref" in beside or "anyOf" in beside:
        if "$ref" in beside:
            meant = definitions[beside.pop("$ref").removeprefix("#/$defs/")]
        else:
            (meant,) = (choice for choice in beside.pop("anyOf") if choice.get("type") != "null")
        beside = {**meant, **beside}
    return beside


def _without_defaults(node: Json) -> Json:
    """A status is the operator's word alone: the API server adds nothing to it."""
    kept: Json = {}
    for key, value in node.items():
        if key == "properties":
            kept[key] = {name: _without_defaults(field) for name, field in value.items()}
        elif key == "items":
            kept[key] = _without_defaults(value)
        elif key != "default":
            kept[key] = value
    return kept


def _one_line(text: str) -> str:
    return " ".join(text.split())
