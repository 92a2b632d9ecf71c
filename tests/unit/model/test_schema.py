"""The CRD as it is generated: structural, bounded, described, and without a way out of a namespace."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tenure.cli import crds as command
from tenure.model import server_template, template
from tenure.model.reasons import ServerConditionReason, ServerConditionType
from tenure.model.schema import agent_process_crd, control_server_crd, crds

CRDS = Path(__file__).resolve().parents[3] / "crds"
Node = dict[str, Any]


def _nodes(node: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    yield path or "(root)", node
    for name, field in node.get("properties", {}).items():
        yield from _nodes(field, f"{path}.{name}")
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if key in node:
            yield from _nodes(node[key], path + mark)


def _version(crd: Node) -> Node:
    version: Node = crd["spec"]["versions"][0]
    return version


def _root(crd: Node) -> Node:
    root: Node = _version(crd)["schema"]["openAPIV3Schema"]
    return root


AGENT, SERVER = _root(agent_process_crd()), _root(control_server_crd())
NODES = {
    f"{short}{path}": node for short, root in (("ap", AGENT), ("cs", SERVER)) for path, node in _nodes(root)
}
FIELDS = {path: node for path, node in NODES.items() if re.match(r"..\.(spec|status)", path)}


@pytest.mark.parametrize("path", NODES)
def test_every_place_has_one_type_and_nothing_that_a_structural_schema_lacks(path: str) -> None:
    node = NODES[path]
    assert node["type"] in ("object", "array", "string", "integer", "boolean")
    assert not {"$ref", "$defs", "anyOf", "allOf", "oneOf", "title", "const", "definitions"} & node.keys()
    assert not {"exclusiveMinimum", "exclusiveMaximum"} & node.keys()
    assert node.get("default", "") is not None


@pytest.mark.parametrize("path", FIELDS)
def test_everything_that_can_grow_has_a_limit(path: str) -> None:
    """Without limits the API server refuses the rules for what they might cost."""
    node = FIELDS[path]
    match node["type"]:
        case "string":
            assert "maxLength" in node or "enum" in node or node.get("format") == "date-time"
        case "array":
            assert "maxItems" in node
        case "object" if "additionalProperties" in node:
            assert "maxProperties" in node


@pytest.mark.parametrize(
    "path", [path for path in FIELDS if not path.endswith(("{}", "[]")) or FIELDS[path]["type"] == "object"]
)
def test_every_field_explains_itself_in_plain_sentences(path: str) -> None:
    description = FIELDS[path]["description"]
    assert re.fullmatch(r"[A-Z].*\.", description)
    assert "``" not in description
    assert "\n" not in description


def test_every_range_is_in_the_words_of_its_field() -> None:
    ranges = [node for node in FIELDS.values() if "minimum" in node and "maximum" in node]
    assert len(ranges) == 12
    for node in ranges:
        assert node["description"].endswith(f" From {node['minimum']} to {node['maximum']}.")


def test_every_rule_says_what_is_allowed_in_words() -> None:
    rules = [rule for node in NODES.values() for rule in node.get("x-kubernetes-validations", [])]
    assert len(rules) > 60
    for rule in rules:
        assert re.search(r"\bmust\b", rule["message"]), rule
        assert "self." not in rule["message"]
        assert len(rule["message"]) < 200


def test_only_what_is_carried_verbatim_keeps_what_is_not_declared() -> None:
    kept = {path for path, node in NODES.items() if "x-kubernetes-preserve-unknown-fields" in node}
    assert kept == {
        "ap.spec.template.spec",
        "ap.spec.template.spec.containers[]",
        "cs.spec.server.resources",
        "cs.spec.server.template.spec",
        "cs.spec.server.template.spec.containers[]",
        "cs.spec.server.template.spec.containers[].livenessProbe",
        "cs.spec.server.template.spec.os",
        "cs.spec.storage.emptyDir",
        "cs.spec.storage.volumeClaimTemplate.spec",
    }


def _fields(root: Node, *path: str) -> set[str]:
    for part in path:
        root = root["properties"][part]
    return set(root.get("items", root)["properties"])


def test_the_spec_has_the_fields_of_the_documentation() -> None:
    assert _fields(AGENT, "spec") == {
        "desiredState",
        "processKind",
        "restartToken",
        "onExternalStop",
        "restartPolicy",
        "backoff",
        "drain",
        "hung",
        "stuckTaskSeconds",
        "liveness",
        "eviction",
        "template",
        "session",
    }
    assert _fields(AGENT, "spec", "session") == {
        "controlServerRef",
        "sessionID",
        "taskID",
        "agentProfile",
        "workspacePath",
        "workspaceSourceRoots",
        "prompt",
    }
    assert _fields(SERVER, "spec") == {
        "agentSurvival",
        "installationID",
        "backend",
        "server",
        "storage",
        "recovery",
        "unownedPeriodSeconds",
        "idleTimeoutSeconds",
        "detachedEventLimit",
        "agentProfiles",
    }
    assert _fields(SERVER, "spec", "backend") == {"selector", "container", "handover"}
    assert _fields(SERVER, "spec", "server") == {"image", "resources", "template"}
    assert _fields(SERVER, "spec", "recovery") == {
        "deadlineSeconds",
        "readTimeoutMilliseconds",
        "readRetries",
    }
    profile = {"name", "command", "continueArgs", "env", "history", "permissions"}
    assert _fields(SERVER, "spec", "agentProfiles") == profile


@pytest.mark.accept("S-005.2")
def test_survival_is_off_unless_it_is_asked_for() -> None:
    assert FIELDS["cs.spec.agentSurvival"]["default"] == "Disabled"


def test_the_status_has_the_fields_of_the_documentation_and_no_defaults() -> None:
    assert _fields(AGENT, "status") == {
        "observedGeneration",
        "phase",
        "instance",
        "currentTask",
        "stop",
        "backoff",
        "restarts",
        "stops",
        "conditions",
    }
    assert _fields(SERVER, "status") == {
        "observedGeneration",
        "phase",
        "installationID",
        "serverIdentity",
        "endpoint",
        "pod",
        "backend",
        "adoptedBy",
        "recoveredBy",
        "survival",
        "capabilities",
        "diagnosticOutput",
        "recovery",
        "unstoppedInstances",
        "untrackedInstances",
        "adjustments",
        "conditions",
    }
    assert not [path for path, node in FIELDS.items() if path[2:].startswith(".status") and "default" in node]


@pytest.mark.accept("K-9")
def test_no_field_takes_an_endpoint_a_host_a_namespace_or_a_credential() -> None:
    """What the template refuses is declared only so that it can be refused."""
    telling = re.compile(
        r"namespace|endpoint|host|address|^ip$|ip$|url|uri|port$|password|secret|credential|apikey|key$|cert|token",
        re.I,
    )
    refused = {f"ap.spec.template.spec.{name}" for name in template.REFUSED if "host" in name.lower()}
    refused |= {
        f"cs.spec.server.template.spec.{name}" for name in server_template.REFUSED if "host" in name.lower()
    }
    env = "cs.spec.agentProfiles[].env[].valueFrom.secretKeyRef"
    harmless = {
        "ap.spec.restartToken": "any text of the author's, compared and never sent",
        "ap.status.instance.restartToken": "the same",
        "ap.spec.liveness.credentialsSecretRef": "names a Secret of the same namespace",
        "ap.spec.liveness.credentialsSecretRef.key": "names a key of it",
        env: "names a Secret of the same namespace",
        f"{env}.key": "names a key of it",
        "cs.spec.backend.selector.matchExpressions[].key": "names a label",
        "cs.status.endpoint": "written for people, never read",
    }
    found = {path for path in FIELDS if telling.search(path.rstrip("[]{}").rpartition(".")[2])}
    assert found == refused | set(harmless)
    for reference in ("ap.spec.liveness.credentialsSecretRef", env):
        assert set(FIELDS[reference]["properties"]) == {"name", "key"}
    assert set(FIELDS["ap.spec.session.controlServerRef"]["properties"]) == {"name"}


@pytest.mark.accept("K-9")
def test_everything_declared_to_be_refused_has_its_rule() -> None:
    def ruled(path: str) -> set[str]:
        rules = NODES[path]["x-kubernetes-validations"]
        return {rule.get("fieldPath", "").removeprefix(".") for rule in rules}

    assert set(template.REFUSED) <= ruled("ap.spec.template.spec")
    assert {*server_template.REFUSED, "terminationGracePeriodSeconds"} <= ruled(
        "cs.spec.server.template.spec"
    )
    assert {
        "hostNetwork",
        "hostname",
        "setHostnameAsFQDN",
        "terminationGracePeriodSeconds",
        "restartPolicy",
    } <= set(template.REFUSED)


@pytest.mark.parametrize(
    ("crd", "plural", "short"),
    [
        (agent_process_crd(), "agentprocesses", ["ap"]),
        (control_server_crd(), "controlservers", ["cs", "csrv"]),
    ],
    ids=["AgentProcess", "ControlServer"],
)
def test_names_short_name_and_category_are_the_documented_ones(
    crd: Node, plural: str, short: list[str]
) -> None:
    names = crd["spec"]["names"]
    assert (names["plural"], names["shortNames"], names["categories"]) == (plural, short, ["tenure"])
    assert crd["metadata"]["name"] == f"{plural}.tenure.dev"
    assert crd["spec"]["scope"] == "Namespaced"
    assert _version(crd)["subresources"] == {"status": {}}


def test_conditions_and_their_reasons_are_what_kubernetes_takes() -> None:
    """The pattern of ``reason`` in metav1.Condition."""
    for word in (*ServerConditionType, *ServerConditionReason):
        assert re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", word)
    assert list(ServerConditionType) == [
        "Ready",
        "Adopted",
        "Recovered",
        "SurvivalAvailable",
        "Stalled",
        "BackendOverlap",
        "OwnershipLost",
    ]


def test_the_committed_files_are_what_the_models_generate() -> None:
    committed = {file.name: file.read_text(encoding="utf-8") for file in CRDS.glob("*.yaml")}
    assert committed == command.rendered(), "run make generate"


def test_generating_twice_gives_the_same_bytes() -> None:
    assert command.rendered() == command.rendered()


def test_the_text_means_what_the_models_say() -> None:
    assert {name: yaml.safe_load(text) for name, text in command.rendered().items()} == crds()


def test_the_command_writes_a_directory_and_says_what_changed(tmp_path: Path) -> None:
    import typer

    app = typer.Typer()
    app.command()(command.crds)
    target = tmp_path / "new" / "crds"
    first = CliRunner().invoke(app, ["--output", str(target)])
    again = CliRunner().invoke(app, ["--output", str(target)])
    assert (first.exit_code, again.exit_code) == (0, 0)
    assert "agentprocess.yaml: written" in first.output
    assert "agentprocess.yaml: unchanged" in again.output
    assert {file.name: file.read_text(encoding="utf-8") for file in target.iterdir()} == command.rendered()


def test_the_command_prints_when_no_directory_is_given() -> None:
    import typer

    app = typer.Typer()
    app.command()(command.crds)
    printed = CliRunner().invoke(app, [])
    assert list(yaml.safe_load_all(printed.stdout)) == list(crds().values())
