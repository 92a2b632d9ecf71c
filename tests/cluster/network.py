"""The node's network: one namespace with a bridge. The host gets no port, no address and no firewall rule.

Processes enter it by ``nsenter --net=...`` and not by ``ip netns exec``, which would hide the cgroup mounts.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.cluster.control_plane import SERVICE_RANGE
from tests.cluster.say import CannotStart

POD_RANGE = "10.244.0.0/16"
NODE_ADDRESS = "10.244.0.1"
BRIDGE = "cni0"
_SETTINGS = ("net/ipv4/ip_forward", "net/ipv4/conf/all/route_localnet", "net/bridge/bridge-nf-call-iptables")


def file(name: str) -> Path:
    """The namespace's file, for ``nsenter --net=``."""
    return Path("/run/netns") / name


def enter(name: str) -> list[str]:
    """The words that run a command inside the namespace."""
    return ["nsenter", f"--net={file(name)}"]


def create(name: str) -> None:
    """Make the namespace with its bridge; raises ``CannotStart`` where the kernel or the rights do not
    allow it."""
    _ip("netns", "add", name)
    for words in (
        ("link", "set", "lo", "up"),
        ("link", "add", BRIDGE, "type", "bridge"),
        ("address", "add", f"{NODE_ADDRESS}/16", "dev", BRIDGE),
        ("link", "set", BRIDGE, "up"),
        # Without a route the kernel refuses a service address before kube-proxy's rules can translate it.
        ("route", "add", SERVICE_RANGE, "dev", BRIDGE),
    ):
        _ip("-n", name, *words)
    for setting in _SETTINGS:
        script = f"import pathlib as p; f = p.Path('/proc/sys/{setting}'); f.exists() and f.write_text('1')"
        # /proc/sys/net shows the namespace of whoever opens it.
        subprocess.run([*enter(name), sys.executable, "-c", script], check=True, capture_output=True)


def remove(name: str) -> None:
    """End every process in the namespace, then the namespace."""
    if not file(name).exists():
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + 2.0
        while (found := _processes(name)) and time.monotonic() < until:
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(0.1)
    with suppress(CannotStart):
        _ip("netns", "delete", name)


def _processes(name: str) -> list[int]:
    done = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
    return [int(word) for word in done.stdout.split() if int(word) != os.getpid()]


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotStart(
            f"the kernel refuses the node's network: 'ip {' '.join(words)}' says: {done.stderr.strip()}"
        )
