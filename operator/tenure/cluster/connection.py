"""Where the API server is and who we are to it: the ServiceAccount of a pod, or a kubeconfig."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import kube_config
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.config.incluster_config import SERVICE_CERT_FILENAME, SERVICE_TOKEN_FILENAME

from tenure.model.errors import TenureError
from tenure.model.masked import Masked

_load_kubeconfig: Any = kube_config.load_kube_config  # untyped in the library


class NoCluster(TenureError):
    """Neither a ServiceAccount nor a usable kubeconfig: the text says what was looked for."""


@dataclass(frozen=True, slots=True)
class ConnectionFacts:
    """What another client (kopf's) needs in order to reach the same server as the same user."""

    server: str
    """``https://host:port``, the host as an address where the cluster gives one: no DNS is needed."""
    ca_path: str | None = None
    token: Masked | None = None
    """The bearer token as it is now, without the word ``Bearer``; None when a client certificate is used."""
    certificate_path: str | None = None
    private_key_path: str | None = None
    insecure: bool = False
    tls_server_name: str | None = None


async def load_configuration(environ: Mapping[str, str] | None = None) -> Configuration:
    """The client configuration: ``KUBERNETES_SERVICE_HOST`` with its mounted token, else ``KUBECONFIG``.

    A kubeconfig that is named explicitly wins, so that a program in a pod can be pointed elsewhere. The
    ServiceAccount token is read again for each call, since kubelets rotate it. Raises ``NoCluster``.
    """
    env = os.environ if environ is None else environ
    # trust_env False: a proxy variable must not redirect our credential.
    configuration = Configuration(client_session_kwargs={"trust_env": False})
    try:
        if not env.get("KUBECONFIG") and env.get("KUBERNETES_SERVICE_HOST"):
            _use_service_account(configuration, env)
        else:
            path = env.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
            await _load_kubeconfig(config_file=path, client_configuration=configuration, persist_config=False)
    except (ConfigException, OSError, TypeError, AttributeError) as error:
        # The last two are how the loader fails on a file that is missing or no kubeconfig at all.
        raise NoCluster(
            "no cluster to talk to: expected a mounted ServiceAccount (KUBERNETES_SERVICE_HOST) or a "
            f"readable kubeconfig (KUBECONFIG, or ~/.kube/config); {type(error).__name__}"
        ) from error
    return configuration


def _use_service_account(configuration: Configuration, environ: Mapping[str, str]) -> None:
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT") or "443"
    configuration.host = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    configuration.ssl_ca_cert = SERVICE_CERT_FILENAME
    token, authority = Path(SERVICE_TOKEN_FILENAME), Path(SERVICE_CERT_FILENAME)

    def read_token(configuration: Any) -> None:
        configuration.api_key["BearerToken"] = f"Bearer {token.read_text().strip()}"

    if not authority.read_bytes():
        raise ConfigException("an empty certificate")
    read_token(configuration)
    # Before each call: the kubelet replaces the file, and it lives in memory.
    hooked: Any = configuration  # the library declares the hook as None
    hooked.refresh_api_key_hook = read_token


def facts_of(configuration: Configuration) -> ConnectionFacts:
    """The configuration as plain facts, with the token as it is at this moment."""
    refresh: Any = configuration.refresh_api_key_hook
    if refresh is not None:
        refresh(configuration)
    header = str(configuration.api_key.get("BearerToken") or "")
    scheme, _, token = header.partition(" ")
    return ConnectionFacts(
        server=str(configuration.host),
        ca_path=configuration.ssl_ca_cert,
        token=Masked(token.strip()) if scheme.lower() == "bearer" and token.strip() else None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        insecure=not configuration.verify_ssl,
        tls_server_name=configuration.tls_server_name,
    )
