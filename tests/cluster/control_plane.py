"""etcd, kube-apiserver and kube-controller-manager (a scheduler too, if asked for), started in seconds.

On loopback with free ports it needs no root: that is the control plane of the integration tests. The node
(``node.py``) uses the same class inside its own network namespace.
"""

import contextlib
import json
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException, HTTPSConnection
from pathlib import Path

from tests.cluster import build
from tests.cluster.certs import Authority, Pair, signing_key
from tests.cluster.processes import Processes, owner_alive
from tests.cluster.say import CannotStart

SERVICE_RANGE = "10.96.0.0/16"
SERVICE_ADDRESS = "10.96.0.1"
SCRATCH = "tenure-control-plane-"
_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


@dataclass(frozen=True)
class Ports:
    """TCP ports of the control plane."""

    api: int
    etcd: int
    etcd_peer: int

    @classmethod
    def free(cls) -> "Ports":
        """Three ports of loopback that nobody listens on right now."""
        sockets = [socket.socket() for _ in range(3)]
        try:
            for each in sockets:
                each.bind(("127.0.0.1", 0))
            return cls(*(each.getsockname()[1] for each in sockets))
        finally:
            for each in sockets:
                each.close()


class ControlPlane:
    """One control plane; ``start()`` returns when it serves and the ``default`` ServiceAccount exists.

    Attributes for users: ``server`` (URL), ``kubeconfig`` (path), ``token`` (of a cluster admin),
    ``authority`` (path of the CA certificate), ``admin`` (client certificate and key). ``node_grace``
    is the number of seconds after which a node that reports nothing counts as gone.
    """

    def __init__(
        self,
        folder: Path,
        *,
        address: str = "127.0.0.1",
        ports: Ports | None = None,
        prefix: Sequence[str] = (),
        node: bool = False,
        node_grace: int = 20,
        api_arguments: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.address = address
        self.ports = ports or Ports.free()
        self.node = node
        self.node_grace = node_grace
        self.api_arguments = list(api_arguments)
        self.processes = Processes(folder, prefix)
        self.program = build.kubenode()
        self.server = f"https://{address}:{self.ports.api}"
        self.token = secrets.token_hex(16)
        self.kubeconfig = folder / "kubeconfig"
        self._authority = Authority(folder / "pki")
        self.authority = self._authority.certificate
        self.admin = self.user("admin", "tenure-test-admin", "system:masters")
        self._write_files()

    def user(self, file: str, name: str, *groups: str) -> Pair:
        """A client certificate for somebody, to connect with other rights than the admin's."""
        return self._authority.client(file, name, groups)

    def serving(self, file: str, alternatives: Sequence[str]) -> Pair:
        """A serving certificate of the cluster's authority."""
        return self._authority.server(file, alternatives)

    def start(self) -> None:
        """Start everything and wait for it; raises ``CannotStart`` with the last words of the
        program that failed."""
        self.start_servers()
        self.wait_until_served()
        self.start_clients()
        self.wait_for_default_account()

    def start_servers(self) -> None:
        """Start etcd and the API server, and wait for nothing."""
        self.start_etcd()
        self.start_api_server()

    def start_clients(self) -> None:
        """Start the controllers. Only once the API server serves: they give up for good when it is not
        healthy within ten seconds, which a busy machine cannot promise."""
        self.start_controller_manager()
        if self.node:
            self._kubernetes("kube-scheduler", [f"--kubeconfig={self.kubeconfig}", *_NO_ELECTION])

    def stop(self) -> None:
        """End everything, the API server first: without its etcd it would not end at all."""
        order = {"kube-apiserver": 0, "etcd": 2}
        for program in sorted(self.processes.programs, key=lambda each: order.get(each.name, 1)):
            self.processes.stop(program, patience=1.0)

    def stop_api_server(self) -> None:
        """Take the API server away at once, as a crash does; etcd and the controllers stay."""
        program = self.processes.running("kube-apiserver")
        if program is not None:
            self.processes.stop(program, patience=0.0)

    def start_etcd(self) -> None:
        """Start etcd; its writes are not synced to the disk, nothing here has to survive a power cut."""
        client = f"http://127.0.0.1:{self.ports.etcd}"
        peer = f"http://127.0.0.1:{self.ports.etcd_peer}"
        command: list[str | Path] = [
            self.program,
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]
        self.processes.start("etcd", command)

    def start_api_server(self) -> None:
        """Start the API server (again, on the same port, after ``stop_api_server``)."""
        pki = self.folder / "pki"
        arguments = [
            f"--etcd-servers=http://127.0.0.1:{self.ports.etcd}",
            f"--secure-port={self.ports.api}",
            f"--bind-address={'0.0.0.0' if self.node else self.address}",
            f"--advertise-address={self.address}",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged=true",
            f"--client-ca-file={self.authority}",
            f"--tls-cert-file={self._serving.certificate}",
            f"--tls-private-key-file={self._serving.key}",
            f"--token-auth-file={pki / 'tokens.csv'}",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={self._tokens.certificate}",
            f"--service-account-signing-key-file={self._tokens.key}",
            "--profiling=false",
        ]
        if self.node:
            arguments += [
                "--kubelet-preferred-address-types=InternalIP",
                f"--kubelet-certificate-authority={self.authority}",
                f"--kubelet-client-certificate={self.admin.certificate}",
                f"--kubelet-client-key={self.admin.key}",
            ]
        else:
            # A loopback address is no valid endpoint; nothing in a control plane without a node would use it.
            arguments.append("--endpoint-reconciler-type=none")
            # As on OpenShift: whoever makes an object that an owner's deletion waits for needs a right on the owner.
            arguments.append("--enable-admission-plugins=OwnerReferencesPermissionEnforcement")
        self._kubernetes("kube-apiserver", arguments + self.api_arguments)

    def start_controller_manager(self) -> None:
        """Start the controllers: garbage collector, namespaces, ServiceAccounts, disruption, pod GC
        and the rest."""
        arguments = [
            f"--kubeconfig={self.kubeconfig}",
            f"--root-ca-file={self.authority}",
            f"--service-account-private-key-file={self._tokens.key}",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            "--allocate-node-cidrs=false",
            "--node-monitor-period=1s",
            f"--node-monitor-grace-period={self.node_grace}s",
            "--kube-api-qps=300",
            "--kube-api-burst=600",
            *_NO_ELECTION,
        ]
        self._kubernetes("kube-controller-manager", arguments)

    def learn_kinds(self) -> None:
        """Have the garbage collector know the kinds that were defined since it was started. By itself it looks for them
        every half a minute, and until then nothing goes with an owner of such a kind."""
        program = self.processes.running("kube-controller-manager")
        if program is not None:
            self.processes.stop(program, patience=0.0)
        self.start_controller_manager()

    def wait_until_served(self, within: float = 60.0) -> None:
        """Return when ``/readyz`` says ok."""
        self._wait_for("/readyz", "the API server", within)

    def wait_for_default_account(self, within: float = 20.0) -> None:
        """Return when pods can be created in the ``default`` namespace: they need its ServiceAccount."""
        url = "/api/v1/namespaces/default/serviceaccounts/default"
        self._wait_for(url, "the default ServiceAccount", within)

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 60.0) -> str:
        """Run kubectl as the admin and return its output; raises ``CalledProcessError`` with stderr
        attached."""
        command = [
            *self.processes.prefix,
            str(self.program),
            "kubectl",
            f"--kubeconfig={self.kubeconfig}",
            *arguments,
        ]
        return subprocess.run(
            command, input=stdin or "", capture_output=True, text=True, check=True, timeout=timeout
        ).stdout

    def kubeconfig_for(self, file: str, user: dict[str, str]) -> Path:
        """Write another kubeconfig; ``user`` is the user entry as kubectl reads it, with data or
        file keys."""
        path = self.folder / file
        authority = b64encode(self.authority.read_bytes()).decode()
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "tenure",
                    "cluster": {"server": self.server, "certificate-authority-data": authority},
                }
            ],
            "users": [{"name": "tenure", "user": user}],
            "contexts": [{"name": "tenure", "context": {"cluster": "tenure", "user": "tenure"}}],
            "current-context": "tenure",
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(content, indent=1))
        return path

    def _write_files(self) -> None:
        pki = self.folder / "pki"
        self._tokens = signing_key(pki)
        addresses = {self.address, "127.0.0.1", SERVICE_ADDRESS}
        self._serving = self.serving("apiserver", [*_NAMES, *sorted(addresses)])
        tokens = pki / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text(f'{self.token},tenure-test-admin,tenure-test-admin,"system:masters"\n')
        self.kubeconfig_for("kubeconfig", {"token": self.token})

    def _kubernetes(self, name: str, arguments: Sequence[str]) -> None:
        self.processes.start(name, [self.program, name, *arguments])

    def _answers(self, url: str) -> bool:
        """True when a GET succeeds. Without kubectl where possible: it costs more than a busy machine has."""
        if self.processes.prefix:
            with contextlib.suppress(subprocess.SubprocessError):
                self.kubectl("get", f"--raw={url}", "--request-timeout=3s", timeout=10)
                return True
            return False
        tls = ssl.create_default_context(cafile=str(self.authority))
        connection = HTTPSConnection(self.address, self.ports.api, timeout=3, context=tls)
        with contextlib.suppress(OSError, HTTPException), contextlib.closing(connection):
            connection.request("GET", url, headers={"Authorization": f"Bearer {self.token}"})
            return connection.getresponse().status == 200
        return False

    def _wait_for(self, url: str, what: str, within: float) -> None:
        until = time.monotonic() + within
        while not self._answers(url):
            self.processes.check()
            if time.monotonic() > until:
                words = self.processes.last_words("kube-apiserver")
                raise CannotStart(
                    f"{what} did not come within {within:.0f} s; the API server's last words: {words}"
                )
            time.sleep(0.1)


_NO_ELECTION = ("--leader-elect=false", "--secure-port=0", "--profiling=false")


def start_for_tests(*, node_grace: int = 20, api_arguments: Sequence[str] = ()) -> ControlPlane:
    """A control plane in a scratch folder on free loopback ports; tried again when somebody took a port
    meanwhile."""
    sweep()
    for attempt in range(3):
        folder = Path(tempfile.mkdtemp(prefix=SCRATCH))
        plane = ControlPlane(folder, node_grace=node_grace, api_arguments=api_arguments)
        try:
            plane.start()
        except BaseException as error:
            remove(plane)
            if attempt == 2 or not (
                isinstance(error, CannotStart) and "address already in use" in str(error)
            ):
                raise
        else:
            return plane
    raise AssertionError("unreachable")


def remove(plane: ControlPlane) -> None:
    """Stop a control plane and delete its folder."""
    plane.stop()
    shutil.rmtree(plane.folder, ignore_errors=True)


def sweep() -> None:
    """End what a crashed test run left behind: programs whose run is gone, and their folder."""
    for folder in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
        with contextlib.suppress(FileNotFoundError):  # another run removes its own
            if folder.stat().st_uid != os.geteuid():
                continue
            if (folder / "processes.json").exists() and not owner_alive(folder):
                left = Processes.left_in(folder)
                for program in list(left.programs):
                    left.stop(program, patience=0.0)
                shutil.rmtree(folder, ignore_errors=True)
