"""The CustomResourceDefinitions, generated from the models.

A structural schema knows neither references nor alternatives nor null, so what pydantic writes is folded:
references are put in place, "or null" goes (a field that may be absent is simply not required), and "more
fields allowed" becomes ``x-kubernetes-preserve-unknown-fields``.

Source: https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/
"""

from collections.abc import Mapping
from typing import Any

from tenure.model.resources import GROUP, KIND, PLURAL, VERSION, AgentProcess, AgentProcessSpec
from tenure.model.status import Status
from tenure.model.wire import WireModel, rule

Json = dict[str, Any]

NAME_LIMIT_RULE = rule(
    "self.metadata.name.size() <= 63",
    "metadata.name must have at most 63 characters, so that names derived from it stay unique and readable",
)

_ORDER = ("type", "format", "description", "default", "enum", "required", "properties", "items")
_DROPPED = ("title", "propertyNames", "$defs")


def crds() -> dict[str, Json]:
    """Every CRD, by the name of the file that it goes into."""
    return {"agentprocess.yaml": agent_process_crd()}


def agent_process_crd() -> Json:
    """The CRD of AgentProcess as a plain dict, ready for YAML. The same models give the same dict, order
    included."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["ap"],
                "categories": ["tenure"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": _columns(),
                    "selectableFields": [
                        {"jsonPath": ".spec.desiredState"},
                        {"jsonPath": ".status.phase"},
                    ],
                    "schema": {"openAPIV3Schema": _root()},
                }
            ],
        },
    }


def _root() -> Json:
    return {
        "type": "object",
        "description": _one_line(AgentProcess.__doc__ or ""),
        "required": ["spec"],
        "x-kubernetes-validations": [NAME_LIMIT_RULE],
        "properties": {
            "apiVersion": {"type": "string", "maxLength": 253},
            "kind": {"type": "string", "maxLength": 63},
            "metadata": {"type": "object"},
            "spec": structural(AgentProcessSpec),
            "status": _without_defaults(structural(Status)),
        },
    }


def _columns() -> list[Json]:
    """What fits 100 characters behind a name of 30, with the longest phase and origin that there are."""
    ready = '.status.conditions[?(@.type=="Ready")]'
    alive = '.status.conditions[?(@.type=="Alive")]'
    return [
        _column("Phase", "string", ".status.phase", "a summary of what the agent does"),
        _column("Ready", "string", f"{ready}.status", "running, or stopped as asked"),
        _column("Task", "integer", ".status.currentTask.id", "the task that the agent holds"),
        _column("Stop", "string", ".status.stop.origin", "who asked the latest instance to stop"),
        _column("Restarts", "integer", ".status.restarts", "new instances after ends that nobody asked for"),
        _column("Age", "date", ".metadata.creationTimestamp", "time since the resource was made"),
        _column("Desired", "string", ".spec.desiredState", "what is wanted of the agent", wide=True),
        _column("Alive", "string", f"{alive}.status", "whether the agent's heartbeat is fresh", wide=True),
        _column("Reason", "string", f"{ready}.reason", "why it is Ready, or is not", wide=True),
        _column("Pod", "string", ".status.instance.podName", "the pod of the latest instance", wide=True),
    ]


def _column(name: str, kind: str, path: str, description: str, *, wide: bool = False) -> Json:
    column: Json = {"name": name, "type": kind, "jsonPath": path, "description": description}
    return column | ({"priority": 1} if wide else {})


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
