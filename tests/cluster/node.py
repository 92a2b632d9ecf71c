"""The embedded node: a Kubernetes cluster of one node in a network namespace, for e2e tests and the demo.

Everything it writes is in two folders, everything it starts is in one network namespace and one control
group: ``down()`` ends the namespace, whatever state an earlier run left.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from tests.cluster import build, cache, images, network, packages, runtime
from tests.cluster.control_plane import ControlPlane, Ports
from tests.cluster.processes import Processes
from tests.cluster.say import CannotStart, say, step

NAME = os.environ.get("TENURE_CLUSTER", "tenure")
NODE = "tenure-node"
_DOMAIN = "cluster.local"
_LINKS = Path("/var/log/containers")


class Node:
    """The node called ``name``. ``up()`` and ``down()`` may each be called in any state."""

    def __init__(self, name: str = NAME) -> None:
        self.name = name
        self.run = Path("/run/tenure-cluster") / name
        self.data = Path("/var/lib/tenure-cluster") / name
        self.kubeconfig = self.run / "kubeconfig"

    def up(self) -> None:
        """Start the node unless it runs already; raises ``CannotStart`` with one sentence about
        what is missing."""
        if os.geteuid() != 0:
            raise CannotStart(
                "the embedded node needs root: run as root, or set KUBECONFIG to a cluster that runs already"
            )
        packages.ensure_for_node()
        build.kubenode()
        build.coredns()
        images.pause()
        with self._alone():
            self._up()

    def down(self) -> None:
        """End the node and remove everything that it left; says nothing when there is nothing."""
        if self._anything():
            with self._alone():
                self._down()

    def _anything(self) -> bool:
        return self.run.exists() or self.data.exists() or network.file(self.name).exists()

    def _alone(self) -> AbstractContextManager[None]:
        """One start or end at a time, whoever asks."""
        return cache.lock(self.run.parent / f".{self.name}.lock")

    def _up(self) -> None:
        if self.ready():
            say(f"the embedded node runs already; kubeconfig {self.kubeconfig}")
            return
        self._down()
        with step("starting the embedded node"):
            try:
                self._start()
            except BaseException:
                self._end()
                raise
        say(f"ready: .venv/bin/python -m tests.cluster shell; kubeconfig {self.kubeconfig}")

    def _down(self) -> None:
        if self._anything():
            with step("ending the embedded node"):
                self._end()
            shutil.rmtree(self.run, ignore_errors=True)
            shutil.rmtree(self.data, ignore_errors=True)

    def ready(self) -> bool:
        """True while every program runs and the node says Ready."""
        programs = Processes.left_in(self.run).programs if self.kubeconfig.exists() else []
        if not programs or not all(program.alive() for program in programs):
            return False
        path = '--output=jsonpath={.status.conditions[?(@.type=="Ready")].status}'
        words = ["kubectl", "get", "node", NODE, path, "--request-timeout=5s"]
        done = subprocess.run(
            self.command(words), env=self.environment(), capture_output=True, text=True, check=False
        )
        return done.stdout.strip() == "True"

    def load(self, *archives: Path) -> None:
        """Import image archives."""
        for archive in archives:
            with step(f"loading image {archive.name}"):
                runtime.load(self.run, archive)

    def command(self, words: Sequence[str]) -> list[str]:
        """The words that run a command inside the node's network."""
        return [*network.enter(self.name), *words]

    def environment(self) -> dict[str, str]:
        """The environment of such a command: KUBECONFIG set, kubectl and helm of the cache first on
        the PATH."""
        tools = build.kubectl().parent
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "PATH": f"{tools}:{os.environ['PATH']}"}

    def _start(self) -> None:
        self.run.mkdir(parents=True, mode=0o700)
        self.data.mkdir(parents=True, mode=0o711)
        network.create(self.name)
        plane = ControlPlane(
            self.run,
            address=network.NODE_ADDRESS,
            ports=Ports(api=6443, etcd=2379, etcd_peer=2380),
            prefix=network.enter(self.name),
            node=True,
            node_grace=40,
        )
        processes = plane.processes
        plane.start_servers()
        cni = packages.cni_folder()
        assert cni is not None
        settings = runtime.write_settings(self.run, self.data, cni)
        search = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        processes.start("containerd", ["containerd", f"--config={settings}"], {"PATH": search})
        runtime.prepare_cgroups(self.name)
        runtime.wait_until_served(self.run)
        runtime.load(self.run, images.pause())
        plane.wait_until_served()
        plane.start_clients()
        self._start_kubelet(plane, search)
        self._start_proxy(plane, search)
        self._start_names(plane)
        plane.wait_for_default_account()
        self._wait_until_ready(processes)

    def _start_kubelet(self, plane: ControlPlane, search: str) -> None:
        user = plane.user("kubelet", f"system:node:{NODE}", "system:nodes")
        serving = plane.serving("kubelet-serving", [NODE, network.NODE_ADDRESS])
        root = self.data / "kubelet"
        resolver = self.data / "resolv.conf"
        resolver.write_text("")
        settings = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(plane.authority)},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.name}",
            "clusterDNS": [network.NODE_ADDRESS],
            "clusterDomain": _DOMAIN,
            "containerRuntimeEndpoint": f"unix://{runtime.socket(self.run)}",
            "evictionHard": {
                "memory.available": "50Mi",
                "nodefs.available": "1%",
                "nodefs.inodesFree": "1%",
                "imagefs.available": "1%",
            },
            "failCgroupV1": False,
            "failSwapOn": False,
            "imageGCHighThresholdPercent": 100,
            "oomScoreAdj": 0,
            "podLogsDir": str(self.data / "pod-logs"),
            "resolvConf": str(resolver),
            "serializeImagePulls": False,
            "tlsCertFile": str(serving.certificate),
            "tlsPrivateKeyFile": str(serving.key),
            "volumePluginDir": str(root / "volume-plugins"),
        }
        file = self.run / "kubelet.json"
        file.write_text(json.dumps(settings, indent=1))
        client = {"client-certificate": str(user.certificate), "client-key": str(user.key)}
        command: list[str | Path] = [
            plane.program,
            "kubelet",
            f"--config={file}",
            f"--kubeconfig={plane.kubeconfig_for('kubelet.kubeconfig', client)}",
            f"--root-dir={root}",
            f"--cert-dir={root / 'pki'}",
            f"--hostname-override={NODE}",
            f"--node-ip={network.NODE_ADDRESS}",
        ]
        plane.processes.start("kubelet", command, {"PATH": search})

    def _start_proxy(self, plane: ControlPlane, search: str) -> None:
        settings = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clientConnection": {"kubeconfig": str(plane.kubeconfig)},
            "clusterCIDR": network.POD_RANGE,
            "hostnameOverride": NODE,
            "oomScoreAdj": 0,
            # The kernel's connection limits belong to the host; zero leaves them alone.
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
            # Without br_netfilter, answers between two pods of one bridge would bypass the translation.
            "nftables": {"masqueradeAll": True},
            "nodePortAddresses": ["primary"],
        }
        file = self.run / "kube-proxy.json"
        file.write_text(json.dumps(settings, indent=1))
        plane.processes.start(
            "kube-proxy", [plane.program, "kube-proxy", f"--config={file}"], {"PATH": search}
        )

    def _start_names(self, plane: ControlPlane) -> None:
        """CoreDNS as a process on the bridge, where the kubelet sends every pod's look-ups."""
        file = self.run / "Corefile"
        file.write_text(
            f""".:53 {{
  bind {network.NODE_ADDRESS}
  errors
  kubernetes {_DOMAIN} in-addr.arpa {{
    kubeconfig {plane.kubeconfig}
    ttl 5
  }}
}}
"""
        )
        plane.processes.start("coredns", [build.coredns(), "-conf", str(file), "-quiet"])

    def _wait_until_ready(self, processes: Processes, within: float = 60.0) -> None:
        until = time.monotonic() + within
        while not self.ready():
            processes.check()
            if time.monotonic() > until:
                words = processes.last_words("kubelet")
                raise CannotStart(
                    f"the node is not Ready within {within:.0f} s; the kubelet's last words: {words}"
                )
            time.sleep(0.2)

    def _end(self) -> None:
        """The API server first, then the containers, then whatever else is in the namespace."""
        left = Processes.left_in(self.run)
        order = {"kube-apiserver": 0, "kubelet": 1, "etcd": 9}
        for program in sorted(left.programs, key=lambda each: order.get(each.name, 5)):
            if program.name != "containerd":
                left.stop(program, patience=1.0)
        runtime.end_containers(self.name)
        for program in list(left.programs):
            left.stop(program, patience=2.0)
        network.remove(self.name)
        runtime.end_containers(self.name)
        runtime.unmount_below(self.run, self.data)
        if _LINKS.is_dir():
            for link in _LINKS.iterdir():
                with suppress(OSError):
                    if link.is_symlink() and str(link.readlink()).startswith(f"{self.data}/"):
                        link.unlink()
