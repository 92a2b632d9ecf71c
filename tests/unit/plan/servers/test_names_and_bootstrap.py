"""Names of children, and what a fresh server is told."""

import json
from typing import Any

import pytest
from tests.support.server_manifests import stored_server

from tenure.control.settings import ServerSettings
from tenure.model.control_server import ControlServer, parse_control_server
from tenure.model.masked import Masked
from tenure.plan.servers import names
from tenure.plan.servers.bootstrap import bootstrap_data, home_dir, read_bootstrap, workspace_roots


def server(name: str = "main", uid: str = "5e12", **spec: Any) -> ControlServer:
    """A ControlServer with this spec."""
    return parse_control_server(stored_server(name, uid=uid, **spec))


def data(resource: ControlServer, **facts: Any) -> dict[str, Masked]:
    """The bootstrap Secret of a pod of it."""
    whole: dict[str, Any] = {
        "identity": "cs-1",
        "vacancy": "b1/c1 p0",
        "nonce": Masked("n" * 64),
        "certificate": "PEM",
        "key": Masked("KEY"),
    }
    return bootstrap_data(resource, **{**whole, **facts})


def test_names_follow_from_the_object_and_never_recur_for_another_one() -> None:
    first, again = server(), server(uid="other")
    assert names.pod_name(first, 2) != names.pod_name(again, 2)
    assert names.ordinal(first, names.pod_name(first, 2)) == 2
    assert names.ordinal(again, names.pod_name(first, 2)) is None
    assert names.bootstrap_name("p") == "p-bootstrap"
    assert names.budget_name(first) != names.budget_name(again)
    assert not names.budget_name(first).endswith("-")


@pytest.mark.parametrize("length", [1, 40, 54, 55, 63])
def test_every_name_fits_where_kubelets_cut_host_names(length: int) -> None:
    long = server("a" * length)
    for name in (
        names.pod_name(long, 10**6),
        names.budget_name(long),
        names.claim_name(long),
        names.handover_name(long.name),
    ):
        assert len(name) <= 63


def test_the_hand_over_is_named_by_the_object_alone() -> None:
    assert names.handover_name("main") == "main-handover"
    one, other = "a" * 62 + "b", "a" * 62 + "c"
    assert names.handover_name(one) != names.handover_name(other)
    assert names.handover_name(one).endswith("-handover")


def test_the_claim_is_found_again_by_an_object_of_the_same_installation() -> None:
    first, again = server(installationID="prod"), server(uid="other", installationID="prod")
    assert names.claim_name(first) == names.claim_name(again)
    assert names.claim_name(server()) != names.claim_name(server(uid="other"))


def test_a_server_takes_its_settings_as_they_are_written() -> None:
    asked = server(
        installationID="prod",
        unownedPeriodSeconds=120,
        idleTimeoutSeconds=0,
        detachedEventLimit=7,
        server={"template": {"spec": {"terminationGracePeriodSeconds": 95}}},
    )
    settings = ServerSettings(**json.loads(data(asked)["config.json"].reveal()))
    assert settings.unowned_period == 120
    assert settings.idle_timeout == 0
    assert settings.retention_limit == 7
    assert settings.shutdown_grace == 85
    assert str(settings.home) == home_dir(asked) == "/var/lib/tenure/prod"
    assert settings.identity == "cs-1"
    assert (settings.host, settings.port) == ("::", 8443)
    assert settings.encrypted
    assert settings.home.is_relative_to(settings.workspace_roots[0])


def test_workspaces_may_lie_in_every_volume_of_the_authors_that_holds_work() -> None:
    volumes = [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "keys", "secret": {"secretName": "keys"}},
    ]
    mounts = [
        {"name": "data", "mountPath": "/data"},
        {"name": "data", "mountPath": "/etc/file", "subPath": "file"},
        {"name": "data", "mountPath": "/tmp"},
        {"name": "keys", "mountPath": "/keys"},
        {"name": "unknown", "mountPath": "/unknown"},
    ]
    beside = {"name": "proxy", "volumeMounts": [{"name": "data", "mountPath": "/proxy"}]}
    spec = {"volumes": volumes, "containers": [beside, {"name": "server", "volumeMounts": mounts}]}
    assert workspace_roots(server(server={"template": {"spec": spec}})) == ["/var/lib/tenure", "/data"]


def test_the_pods_grace_covers_the_stop_of_its_agents() -> None:
    settings = ServerSettings(**json.loads(data(server())["config.json"].reveal()))
    assert settings.shutdown_grace == 25


def test_a_bootstrap_secret_is_read_back_as_it_was_written() -> None:
    found = read_bootstrap(data(server()))
    assert found is not None
    assert (found.identity, found.vacancy, found.certificate) == ("cs-1", "b1/c1 p0", "PEM")
    assert found.home_dir == home_dir(server())
    assert found.nonce == Masked("n" * 64)


@pytest.mark.parametrize("key", ["nonce", "tls.crt", "tls.key", "config.json", "server-identity", "home-dir"])
def test_a_bootstrap_secret_that_is_not_whole_is_none(key: str) -> None:
    whole = data(server())
    assert read_bootstrap({k: v for k, v in whole.items() if k != key}) is None
    assert read_bootstrap({**whole, key: Masked("")}) is None


def test_nothing_that_is_secret_is_shown() -> None:
    whole = data(server(), nonce=Masked("hush" * 16), key=Masked("hush"))
    assert "hush" not in repr(whole)
    assert "hush" not in repr(read_bootstrap(whole))
    assert "hush" not in whole["config.json"].reveal()
