"""The pod of a control server."""

from typing import Any

import pytest
from tests.support.server_manifests import stored_server

from tenure.model.control_server import ControlServer, parse_control_server
from tenure.plan.servers.names import claim_name
from tenure.plan.servers.outdated import outdated, server_hash, to_be_replaced
from tenure.plan.servers.pod import protection, render_server_pod

IMAGE = "tenure:1"


def server(**spec: Any) -> ControlServer:
    """A ControlServer named ``main``, with wire names in ``spec``."""
    return parse_control_server(stored_server(**spec))


def with_template(template: dict[str, Any], **more: Any) -> ControlServer:
    """One whose author gave a template."""
    return server(server={"template": template, **more})


def rendered(resource: ControlServer, ordinal: int = 3, vacancy: str = "b1/c1 p0") -> dict[str, Any]:
    """Its pod."""
    return render_server_pod(resource, ordinal=ordinal, vacancy=vacancy, default_image=IMAGE)


def container(pod: dict[str, Any]) -> dict[str, Any]:
    """The server's own container."""
    found: dict[str, Any] = pod["spec"]["containers"][0]
    return found


def test_the_pod_is_bare_owned_and_one_lifetime() -> None:
    pod = rendered(server())
    meta = pod["metadata"]
    assert meta["ownerReferences"] == [
        {
            "apiVersion": "tenure.dev/v1alpha1",
            "kind": "ControlServer",
            "name": "main",
            "uid": "5e12",
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    assert meta["labels"]["tenure.dev/role"] == "server"
    assert meta["labels"]["tenure.dev/control-server"] == "main"
    assert meta["annotations"]["tenure.dev/vacancy"] == "b1/c1 p0"
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["terminationGracePeriodSeconds"] >= 35
    assert "livenessProbe" not in container(pod)
    assert "finalizers" not in meta


def test_the_pod_keeps_to_the_restricted_profile() -> None:
    pod = rendered(server())
    security = pod["spec"]["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["runAsUser"] == 10001
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    own = container(pod)["securityContext"]
    assert own["allowPrivilegeEscalation"] is False
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert own["readOnlyRootFilesystem"] is True
    assert pod["spec"]["automountServiceAccountToken"] is False
    kinds = {next(key for key in volume if key != "name") for volume in pod["spec"]["volumes"]}
    assert kinds <= {"secret", "emptyDir", "persistentVolumeClaim"}


def test_a_template_loosens_nothing() -> None:
    loose = {
        "spec": {
            "automountServiceAccountToken": True,
            "enableServiceLinks": True,
            "securityContext": {"runAsNonRoot": False, "runAsUser": 2000, "supplementalGroups": [7]},
            "containers": [
                {
                    "name": "server",
                    "securityContext": {"privileged": True, "capabilities": {"add": ["SYS_ADMIN"]}},
                }
            ],
        }
    }
    pod = rendered(with_template(loose))
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["enableServiceLinks"] is False
    security = pod["spec"]["securityContext"]
    assert (security["runAsNonRoot"], security["runAsUser"], security["supplementalGroups"]) == (
        True,
        2000,
        [7],
    )
    own = container(pod)
    assert own["command"][:2] == ["tenure", "control-server"]
    assert own["securityContext"]["privileged"] is False
    assert own["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_a_windows_template_gets_no_field_that_windows_pods_may_not_have() -> None:
    pod = rendered(with_template({"spec": {"os": {"name": "windows"}}}))
    assert pod["spec"]["securityContext"] == {"runAsNonRoot": True}
    assert container(pod)["securityContext"] == {"runAsNonRoot": True}


def test_the_server_is_told_everything_by_an_optional_volume() -> None:
    pod = rendered(server())
    volume = next(v for v in pod["spec"]["volumes"] if v["name"] == "tenure-bootstrap")
    assert volume["secret"]["secretName"] == f"{pod['metadata']['name']}-bootstrap"
    assert volume["secret"]["optional"] is True
    assert {item["key"] for item in volume["secret"]["items"]} == {
        "nonce",
        "tls.crt",
        "tls.key",
        "config.json",
    }
    own = container(pod)
    assert own["command"] == [
        "tenure",
        "control-server",
        "--config",
        "/run/tenure/bootstrap/config.json",
    ]
    mounts = {mount["mountPath"]: mount for mount in own["volumeMounts"]}
    assert mounts["/run/tenure/bootstrap"]["readOnly"] is True
    assert {"/var/lib/tenure", "/tmp"} <= set(mounts)


def test_the_home_is_an_empty_directory_or_the_installations_claim() -> None:
    def home(resource: ControlServer) -> dict[str, Any]:
        found: dict[str, Any] = next(
            v for v in rendered(resource)["spec"]["volumes"] if v["name"] == "tenure-home"
        )
        return found

    assert home(server()) == {"name": "tenure-home", "emptyDir": {}}
    assert home(server(storage={"emptyDir": {"sizeLimit": "1Gi"}}))["emptyDir"] == {"sizeLimit": "1Gi"}
    claimed = server(storage={"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}})
    assert home(claimed)["persistentVolumeClaim"] == {"claimName": claim_name(claimed)}


def test_what_else_a_template_says_is_carried_and_never_ours() -> None:
    template = {
        "metadata": {
            "labels": {"team": "red", "tenure.dev/role": "agent", "tenure.dev/agent-process": "x"},
            "annotations": {"note": "x", "tenure.dev/vacancy": "forged"},
        },
        "spec": {
            "nodeSelector": {"disk": "ssd"},
            "terminationGracePeriodSeconds": 90,
            "initContainers": [{"name": "fetch", "image": "git"}],
            "volumes": [
                {"name": "extra", "emptyDir": {}},
                {"name": "tenure-bootstrap", "secret": {"secretName": "mine"}},
            ],
            "containers": [
                {"name": "proxy", "image": "proxy:1"},
                {
                    "name": "server",
                    "image": "agents:7",
                    "env": [
                        {"name": "MODEL", "value": "large"},
                        {"name": "TENURE_SERVER_HOST", "value": "127.0.0.1"},
                        {"name": "TENURE_SERVER_LOG_LEVEL", "value": "DEBUG"},
                    ],
                    "volumeMounts": [
                        {"name": "extra", "mountPath": "/extra"},
                        {"name": "extra", "mountPath": "/var/lib/tenure"},
                    ],
                },
            ],
        },
    }
    pod = rendered(with_template(template))
    assert pod["metadata"]["labels"]["team"] == "red"
    assert pod["metadata"]["labels"]["tenure.dev/role"] == "server"
    assert "tenure.dev/agent-process" not in pod["metadata"]["labels"]
    assert pod["metadata"]["annotations"]["tenure.dev/vacancy"] == "b1/c1 p0"
    assert pod["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert pod["spec"]["terminationGracePeriodSeconds"] == 90
    assert pod["spec"]["initContainers"] == [{"name": "fetch", "image": "git"}]
    assert [c["name"] for c in pod["spec"]["containers"]] == ["server", "proxy"]
    own = container(pod)
    assert own["image"] == "agents:7"
    assert [e["name"] for e in own["env"]] == ["MODEL", "TENURE_SERVER_LOG_LEVEL"]
    assert [m["mountPath"] for m in own["volumeMounts"]].count("/var/lib/tenure") == 1
    volumes = [v["name"] for v in pod["spec"]["volumes"]]
    assert volumes.count("tenure-bootstrap") == 1
    assert "extra" in volumes
    assert template["spec"]["containers"][1]["image"] == "agents:7"  # type: ignore[index]


def test_the_image_is_the_specs_then_the_templates_then_the_operators_own() -> None:
    template = {"spec": {"containers": [{"name": "server", "image": "agents:7"}]}}
    assert container(rendered(server()))["image"] == IMAGE
    assert container(rendered(with_template(template)))["image"] == "agents:7"
    assert container(rendered(with_template(template, image="agents:8")))["image"] == "agents:8"


def test_resources_are_the_specs() -> None:
    limits = {"limits": {"memory": "1Gi"}}
    assert container(rendered(server(server={"resources": limits})))["resources"] == limits
    assert "resources" not in container(rendered(server()))


def test_a_server_is_outdated_when_spec_or_image_have_changed() -> None:
    made = rendered(server())["metadata"]["annotations"]
    assert not outdated(server(), IMAGE, made)
    assert outdated(server(), "tenure:2", made)
    assert outdated(server(idleTimeoutSeconds=60), IMAGE, made)
    assert outdated(with_template({"spec": {"nodeSelector": {"a": "b"}}}), IMAGE, made)
    assert not outdated(server(recovery={"deadlineSeconds": 60}), IMAGE, made)
    assert not outdated(server(), "tenure:2", {}), "what was made of nobody knows what is left alone"


def test_another_image_of_the_operator_makes_no_server_outdated_that_has_its_own() -> None:
    own = server(server={"image": "agents:8"})
    assert server_hash(own, "tenure:1") == server_hash(own, "tenure:2")


def test_only_a_server_that_is_known_to_be_empty_is_replaced() -> None:
    assert to_be_replaced(outdated=True, hosted=0)
    assert not to_be_replaced(outdated=True, hosted=1)
    assert not to_be_replaced(outdated=True, hosted=None)
    assert not to_be_replaced(outdated=False, hosted=0)


def test_autoscalers_spare_the_pod_exactly_while_it_hosts_instances() -> None:
    safe = "cluster-autoscaler.kubernetes.io/safe-to-evict"
    none = rendered(server())["metadata"]["annotations"]
    change = protection(server(), none, hosting=True)
    assert change is not None
    assert change[safe] == "false"
    on = {**none, **{key: value for key, value in change.items() if value is not None}}
    assert protection(server(), on, hosting=True) is None
    assert protection(server(), on, hosting=False) == dict.fromkeys(change)
    assert protection(server(), none, hosting=False) is None
    authors = with_template({"metadata": {"annotations": {safe: "true"}}})
    assert protection(authors, none, hosting=True) is None


@pytest.mark.parametrize("field", ["volumes", "securityContext", "initContainers"])
@pytest.mark.parametrize("value", ["text", ["text"], 7, [None]])
def test_what_no_pod_can_have_is_for_the_api_server_to_refuse(field: str, value: object) -> None:
    pod = rendered(with_template({"spec": {field: value}}))
    assert container(pod)["command"][0] == "tenure"
    if field == "volumes":
        assert any(not isinstance(volume, dict) for volume in pod["spec"]["volumes"])


@pytest.mark.parametrize("field", ["volumeMounts", "env", "ports", "securityContext"])
@pytest.mark.parametrize("value", ["text", ["text"], 7, [None]])
def test_what_no_container_can_have_stops_nobody(field: str, value: object) -> None:
    pod = rendered(with_template({"spec": {"containers": [{"name": "server", field: value}]}}))
    assert container(pod)["command"][0] == "tenure"
