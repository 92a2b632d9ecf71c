"""What the chart renders, read as objects; never compared with a stored copy."""

import re
from pathlib import Path

import pytest
from tests.integration.chart.helm import NAMESPACE, Helm, Object, only, pod_templates
from tools.sync_chart import crd_template, rendered

from tenure.model.pods import ROLE_LABEL
from tenure.model.settings import load_databases, load_settings
from tenure.operator.rbac import roles
from tenure.plan.servers.names import SERVER_ROLE

EVERYTHING: Object = {
    "databases": {"other": {"existingSecret": "b", "key": "dsn", "namespaces": ["team-a", "team-b"]}},
    "trialPostgresql": {"enabled": True, "shareWith": ["team-a"]},
    "serviceMonitor": {"enabled": True},
    "networkPolicy": {"egress": {"enabled": True}, "metricsFrom": [{"namespaceSelector": {}}]},
    "admission": {"enabled": True},
    "rbac": {"aggregateToDefaultRoles": True},
}
MODES = pytest.mark.parametrize("namespaces", [[], ["team-a", "team-b"]], ids=["cluster-wide", "namespaced"])


def rules(objects: list[Object]) -> list[Object]:
    """The rules of every Role and ClusterRole."""
    return [rule for item in objects if item["kind"] in {"Role", "ClusterRole"} for rule in item["rules"]]


@MODES
@pytest.mark.accept("K-9")
def test_no_role_has_a_wildcard_a_list_of_secrets_or_a_way_to_more_rights(
    offline_helm: Helm, namespaces: list[str]
) -> None:
    for rule in rules(offline_helm.render(EVERYTHING | {"watchNamespaces": namespaces})):
        words = [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        assert "*" not in words
        assert not {"pods/exec", "pods/attach", "serviceaccounts/token"} & set(words)
        if "secrets" in words:
            # Each by its name: whoever can list or watch them has them all.
            assert set(rule["verbs"]) == {"get", "create", "update", "delete"}
        assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])


@MODES
@pytest.mark.accept("K-10")
def test_the_operator_may_do_what_its_code_calls_and_nothing_else(
    offline_helm: Helm, namespaces: list[str]
) -> None:
    objects = offline_helm.render({"watchNamespaces": namespaces})
    for wanted in roles(namespaced=bool(namespaces)):
        made = [
            item
            for item in objects
            if (item["kind"], item["metadata"]["name"]) == (wanted["kind"], wanted["metadata"]["name"])
        ]
        scopes = [item["metadata"].get("namespace") for item in made]
        expected: list[str | None] = [NAMESPACE if wanted["kind"] == "Role" else None]
        assert scopes == (namespaces or expected)
        for role in made:
            assert _granted(role) == _granted(wanted)
    names = {role["metadata"]["name"] for role in roles(namespaced=bool(namespaces))}
    bound = {item["roleRef"]["name"] for item in objects if item["kind"].endswith("RoleBinding")}
    assert bound == names


def _granted(role: Object) -> set[tuple[str, ...]]:
    return {
        (group, resource, verb, *rule.get("resourceNames", []))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.accept("K-10")
def test_namespaced_mode_makes_nothing_of_the_cluster_but_the_definition(offline_helm: Helm) -> None:
    values: Object = {"watchNamespaces": ["team-a"], "trialPostgresql": {"enabled": True}}
    cluster_scoped = {
        "ClusterRole",
        "ClusterRoleBinding",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    }
    kinds = {item["kind"] for item in offline_helm.render(values)}
    assert not cluster_scoped & kinds
    assert "CustomResourceDefinition" in kinds
    kinds = {item["kind"] for item in offline_helm.render(values | {"crds": {"install": False}})}
    assert "CustomResourceDefinition" not in kinds


def test_the_generated_parts_of_the_chart_are_up_to_date() -> None:
    for path, text in rendered().items():
        assert path.read_text() == text, f"{path.name} is behind: make generate"


def test_braces_in_a_definition_survive_the_template(offline_helm: Helm, tmp_path: Path) -> None:
    text = "kind: CustomResourceDefinition\nmetadata:\n  name: x\nspec:\n  about: a {{ brace }}\n"
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "x.yaml").write_text(crd_template(text))
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: x\nversion: 0.0.1\n")
    (tmp_path / "values.yaml").write_text("crds: {install: true}\n")
    definition = offline_helm.render(chart=tmp_path)[0]
    assert definition["spec"] == {"about": "a {{ brace }}"}
    assert definition["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


@MODES
def test_the_operator_reads_the_settings_that_the_chart_gives_it(
    offline_helm: Helm, namespaces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {
        "watchNamespaces": namespaces,
        "operator": {"pollSeconds": 2.5, "leaseSeconds": 20, "logLevel": "DEBUG"},
    }
    pod = pod_templates(offline_helm.render(values))["Deployment/tenure-operator"]["spec"]
    downward = {
        "metadata.name": "tenure-operator-abc",
        "metadata.namespace": "tenure-system",
        "metadata.uid": "0b5e6c0e",
    }
    for variable in pod["containers"][0]["env"]:
        value = variable.get("value")
        if value is None:
            value = downward[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        monkeypatch.setenv(variable["name"], value)
    monkeypatch.setenv("TENURE_DATABASES_DIR", "/tmp")
    settings = load_settings()
    assert list(settings.namespaces) == namespaces
    assert (settings.poll_seconds, settings.lease_seconds, settings.log_level) == (2.5, 20, "DEBUG")
    assert (settings.lease_namespace, settings.lease_name) == ("tenure-system", "tenure-operator")
    assert (settings.http_port, settings.pod_name) == (8080, "tenure-operator-abc")
    assert settings.pod_namespace == "tenure-system"


def test_the_operator_finds_each_database_as_the_kubelet_lays_it_out(
    offline_helm: Helm, tmp_path: Path
) -> None:
    objects = offline_helm.render(EVERYTHING)
    secrets = {"b": {"dsn": "postgresql://other"}, "tenure-trial-postgresql": _trial_secret(objects)}
    _project(objects, "Deployment/tenure-operator", secrets, tmp_path)
    databases = {database.name: database for database in load_databases(tmp_path)}
    assert set(databases) == {"default", "other"}
    assert databases["default"].store
    assert databases["default"].allows("anybody")
    assert not databases["other"].store
    assert databases["other"].allows("team-b")
    assert not databases["other"].allows("team-c")


def test_the_migration_has_the_stores_url_before_any_other_object_of_the_release_exists(
    offline_helm: Helm,
) -> None:
    values: Object = {
        "databases": {
            "one": {"existingSecret": "a", "key": "dsn", "store": True},
            "two": {"existingSecret": "b"},
        },
    }
    assert _migrates_with(offline_helm.render(values)) == {"name": "a", "key": "dsn"}
    values["migrate"] = {"existingSecret": "ddl", "key": "owner"}
    objects = offline_helm.render(values)
    assert _migrates_with(objects) == {"name": "ddl", "key": "owner"}
    assert only(objects, "Job")["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    mounted = pod_templates(objects)["Job/tenure-migrate"]["spec"]["volumes"]
    assert [set(volume) for volume in mounted] == [{"name", "emptyDir"}]


def test_the_trial_database_is_migrated_when_it_exists(offline_helm: Helm) -> None:
    objects = offline_helm.render({"trialPostgresql": {"enabled": True}})
    assert only(objects, "Job")["metadata"]["annotations"]["helm.sh/hook"] == "post-install,post-upgrade"
    assert _migrates_with(objects) == {"name": "tenure-trial-postgresql", "key": "url"}


def test_without_a_store_there_is_nothing_to_migrate(offline_helm: Helm) -> None:
    for databases in ({}, {"default": {"existingSecret": "a"}}):
        assert "Job" not in {item["kind"] for item in offline_helm.render({"databases": databases})}


def _migrates_with(objects: list[Object]) -> Object:
    (container,) = pod_templates(objects)["Job/tenure-migrate"]["spec"]["containers"]
    assert container["command"] == ["tenure", "migrate"]
    variables = {variable["name"]: variable for variable in container["env"]}
    source: Object = variables["TENURE_DATABASE_URL"]["valueFrom"]["secretKeyRef"]
    return source


def _project(objects: list[Object], pod: str, secrets: dict[str, dict[str, str]], folder: Path) -> None:
    """Lay out a projected volume as a kubelet does: every item a file below the mount."""
    volumes = {volume["name"]: volume for volume in pod_templates(objects)[pod]["spec"]["volumes"]}
    for source in volumes["databases"]["projected"]["sources"]:
        ((kind, part),) = source.items()
        for item in part["items"]:
            if kind == "secret":
                text = secrets[part["name"]][item["key"]]
            else:
                text = only(objects, "ConfigMap", part["name"])["data"][item["key"]]
            target = folder / item["path"]
            target.parent.mkdir(exist_ok=True)
            target.write_text(text)


def _trial_secret(objects: list[Object]) -> dict[str, str]:
    return next(
        item["stringData"]
        for item in objects
        if item["kind"] == "Secret" and "password" in item["stringData"]
    )


def test_a_password_of_the_trial_database_is_made_once_per_release_and_used_everywhere(
    offline_helm: Helm,
) -> None:
    first, second = (_trial_secret(offline_helm.render(EVERYTHING)) for _ in range(2))
    assert first["password"] != second["password"]
    assert re.fullmatch(r"[A-Za-z0-9]{32}", first["password"])
    objects = offline_helm.render(EVERYTHING)
    urls = [item["stringData"]["url"] for item in objects if item["kind"] == "Secret"]
    assert len(urls) == 2
    assert len(set(urls)) == 1
    assert _trial_secret(objects)["password"] in urls[0]


def test_no_secret_value_is_rendered_into_anything_but_a_secret(offline_helm: Helm) -> None:
    objects = offline_helm.render(EVERYTHING)
    password = _trial_secret(objects)["password"]
    for item in objects:
        if item["kind"] != "Secret":
            assert password not in str(item), item["metadata"]["name"]


def test_every_pod_of_the_chart_is_hardened(offline_helm: Helm) -> None:
    for name, template in pod_templates(offline_helm.render(EVERYTHING)).items():
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"], name
        assert spec["securityContext"]["fsGroup"] == spec["securityContext"]["runAsGroup"], name
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            assert container["securityContext"]["readOnlyRootFilesystem"], name
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, name
            assert container["resources"]["requests"], name
        only_operator = name == "Deployment/tenure-operator"
        assert spec["automountServiceAccountToken"] == only_operator, name


def _settings(objects: list[Object]) -> dict[str, str]:
    (container,) = pod_templates(objects)["Deployment/tenure-operator"]["spec"]["containers"]
    return {variable["name"]: variable["value"] for variable in container["env"] if "value" in variable}


def test_servers_run_the_operators_image_unless_told_otherwise(offline_helm: Helm) -> None:
    digest = "sha256:" + "0" * 64
    image: Object = {"image": {"repository": "registry.example/tenure", "digest": digest}}
    assert _settings(offline_helm.render(image))["TENURE_SERVER_IMAGE"] == f"registry.example/tenure@{digest}"
    own = image | {"serverImage": "registry.example/agents:7"}
    assert _settings(offline_helm.render(own))["TENURE_SERVER_IMAGE"] == "registry.example/agents:7"


def test_the_labels_that_the_operator_is_told_are_those_of_its_own_pods_alone(
    offline_helm: Helm, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = offline_helm.render(EVERYTHING | {"podLabels": {"team": "red"}})
    monkeypatch.setenv("POD_NAMESPACE", NAMESPACE)
    monkeypatch.setenv("TENURE_POD_LABELS", _settings(objects)["TENURE_POD_LABELS"])
    wanted = load_settings().pod_labels.items()
    assert wanted
    for name, template in pod_templates(objects).items():
        operator = name.startswith("Deployment/") and "postgresql" not in name
        assert (wanted <= template["metadata"]["labels"].items()) == operator, name


@MODES
def test_the_operator_may_reach_control_servers_where_it_works(
    offline_helm: Helm, namespaces: list[str]
) -> None:
    values = EVERYTHING | {"watchNamespaces": namespaces}
    policy = only(offline_helm.render(values), "NetworkPolicy", "tenure-operator")
    (peer,) = next(rule["to"] for rule in policy["spec"]["egress"] if "to" in rule)
    assert peer["podSelector"]["matchLabels"] == {ROLE_LABEL: SERVER_ROLE}
    chosen = peer["namespaceSelector"].get("matchExpressions", [{"values": []}])
    assert chosen[0]["values"] == namespaces


def test_urls_reach_the_operator_as_files_and_never_through_its_environment(offline_helm: Helm) -> None:
    pod = pod_templates(offline_helm.render(EVERYTHING))["Deployment/tenure-operator"]["spec"]
    for variable in pod["containers"][0]["env"]:
        assert "secretKeyRef" not in variable.get("valueFrom", {})
