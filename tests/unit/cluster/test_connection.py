"""Where the API server is, and who we are to it."""

from pathlib import Path

import pytest

from tenure.cluster import connection
from tenure.cluster.connection import NoCluster, facts_of, load_configuration

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://10.1.2.3:6443"}}]
users: [{name: u, user: {token: the-token}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""


async def test_a_kubeconfig_that_is_named_is_used(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(KUBECONFIG)
    facts = facts_of(
        await load_configuration({"KUBECONFIG": str(file), "KUBERNETES_SERVICE_HOST": "10.96.0.1"})
    )
    assert facts.server == "https://10.1.2.3:6443"
    assert facts.token is not None
    assert facts.token.reveal() == "the-token"
    assert "the-token" not in repr(facts)


async def test_in_a_pod_the_address_of_the_service_and_the_mounted_token_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("first")
    authority.write_text("a certificate")
    monkeypatch.setattr(connection, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(connection, "SERVICE_CERT_FILENAME", str(authority))
    configuration = await load_configuration(
        {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    )
    facts = facts_of(configuration)
    assert (facts.server, facts.ca_path) == ("https://[fd00::1]:443", str(authority))
    assert facts.token is not None
    assert facts.token.reveal() == "first"


@pytest.mark.parametrize("content", [None, "", "[]", "just text", "apiVersion: v1\nkind: Config\n"])
async def test_without_a_cluster_the_error_says_what_was_looked_for(
    tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "config"
    if content is not None:
        file.write_text(content)
    with pytest.raises(NoCluster, match=r"KUBERNETES_SERVICE_HOST.*KUBECONFIG"):
        await load_configuration({"KUBECONFIG": str(file)})
