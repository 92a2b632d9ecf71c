"""What a fresh server is told: its settings file, and the Secret that brings it into the pod together with the nonce.

The Secret is also what the operator goes by until the handshake: identity, certificate and vacancy of a pod that may
not even exist yet.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tenure.model.control_server import ControlServer
from tenure.model.masked import Masked
from tenure.model.server_template import MIN_GRACE
from tenure.plan.servers.authors import mounted_for_work

PORT = 8443
VOLUME_ROOT = "/var/lib/tenure"
"""Where the home volume is mounted. Workspaces lie anywhere in it, or in another volume of the author's."""
BOOTSTRAP_DIR = "/run/tenure/bootstrap"
TMP = "/tmp"
MAX_ROOTS = 256
TERMINATION_FILE = "/dev/termination-log"
CONFIG_KEY = "config.json"
NONCE_KEY = "nonce"
CERTIFICATE_KEY = "tls.crt"
KEY_KEY = "tls.key"
MOUNTED_KEYS = (NONCE_KEY, CERTIFICATE_KEY, KEY_KEY, CONFIG_KEY)
"""What the pod gets to see of the Secret, as files."""
CONFIG_PATH = f"{BOOTSTRAP_DIR}/{CONFIG_KEY}"

_IDENTITY_KEY = "server-identity"
_VACANCY_KEY = "vacancy"
_HOME_KEY = "home-dir"
_LAST_LINES = MIN_GRACE - 25
"""Seconds of the pod's grace that are not for stopping agents, but for what comes after."""


@dataclass(frozen=True, slots=True)
class BootstrapSecret:
    """A bootstrap Secret, read and found whole."""

    identity: str
    vacancy: str
    home_dir: str
    certificate: str
    nonce: Masked


def home_dir(server: ControlServer) -> str:
    """The installation's home in the pod: letter by letter what every proof is bound to."""
    return f"{VOLUME_ROOT}/{server.effective_installation_id}"


def grace_seconds(server: ControlServer) -> int:
    """The grace of the server's pod."""
    grace = server.spec.server_pod_spec.get("terminationGracePeriodSeconds", MIN_GRACE)
    return max(MIN_GRACE, grace if isinstance(grace, int) else MIN_GRACE)


def workspace_roots(server: ControlServer) -> list[str]:
    """Directories in which workspaces may lie: the home volume, and further ones of the author's."""
    roots = dict.fromkeys([VOLUME_ROOT, *mounted_for_work(server.spec.server_pod_spec)])
    return [path for path in roots if path not in (TMP, BOOTSTRAP_DIR)][:MAX_ROOTS]


def server_settings(server: ControlServer, identity: str) -> dict[str, Any]:
    """The settings of ``tenure control-server``, by their names in its file. Durations are seconds."""
    spec = server.spec
    return {
        # A pod's address is of whichever family its cluster has.
        "host": "::",
        "port": PORT,
        "home": home_dir(server),
        "identity": identity,
        "nonce_file": f"{BOOTSTRAP_DIR}/{NONCE_KEY}",
        "tls_cert": f"{BOOTSTRAP_DIR}/{CERTIFICATE_KEY}",
        "tls_key": f"{BOOTSTRAP_DIR}/{KEY_KEY}",
        "workspace_roots": workspace_roots(server),
        "unowned_period": spec.unowned_period_seconds,
        "idle_timeout": spec.idle_timeout_seconds,
        "retention_limit": spec.detached_event_limit,
        "shutdown_grace": grace_seconds(server) - _LAST_LINES,
        "termination_message_file": TERMINATION_FILE,
    }


def bootstrap_data(
    server: ControlServer, *, identity: str, vacancy: str, nonce: Masked, certificate: str, key: Masked
) -> dict[str, Masked]:
    """The data of the bootstrap Secret. ``certificate`` is PEM, as is ``key``; ``identity`` never recurs."""
    settings = json.dumps(server_settings(server, identity), indent=2)
    return {
        NONCE_KEY: nonce,
        CERTIFICATE_KEY: Masked(certificate),
        KEY_KEY: key,
        CONFIG_KEY: Masked(settings),
        _IDENTITY_KEY: Masked(identity),
        _VACANCY_KEY: Masked(vacancy),
        _HOME_KEY: Masked(home_dir(server)),
    }


def read_bootstrap(data: Mapping[str, Masked]) -> BootstrapSecret | None:
    """What the operator needs of a bootstrap Secret; None when it is not whole, and so nothing to start from.

    Everything that a server would be started with has to be there: a pod without it would only end.
    """
    needed = (*MOUNTED_KEYS, _IDENTITY_KEY, _HOME_KEY)
    if not all(data.get(name) for name in needed):
        return None
    vacancy = data.get(_VACANCY_KEY)
    return BootstrapSecret(
        identity=data[_IDENTITY_KEY].reveal(),
        vacancy="" if vacancy is None else vacancy.reveal(),
        home_dir=data[_HOME_KEY].reveal(),
        certificate=data[CERTIFICATE_KEY].reveal(),
        nonce=data[NONCE_KEY],
    )
