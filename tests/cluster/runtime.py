"""containerd for the node alone: own folders, own socket; and the removal of what containers leave behind."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from tests.cluster import images
from tests.cluster.network import BRIDGE, POD_RANGE
from tests.cluster.say import CannotStart

_CRI = 'plugins."io.containerd.grpc.v1.cri"'
_CGROUPS = Path("/sys/fs/cgroup")
_UNUSED = (
    "io.containerd.internal.v1.opt",
    *(f"io.containerd.snapshotter.v1.{name}" for name in ("aufs", "btrfs", "devmapper", "zfs")),
)


def write_settings(run: Path, data: Path, cni_plugins: Path) -> Path:
    """containerd's configuration and the CNI network; returns the configuration's path."""
    networks = data / "cni"
    networks.mkdir(parents=True, exist_ok=True)
    (networks / "10-bridge.conflist").write_text(_network(data))
    settings = data / "containerd.toml"
    settings.write_text(
        f"""version = 2
root = "{data / "containerd"}"
state = "{run / "containerd"}"
disabled_plugins = [{", ".join(f'"{plugin}"' for plugin in _UNUSED)}]
[grpc]
address = "{socket(run)}"
[{_CRI}]
sandbox_image = "{images.PAUSE}"
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
[{_CRI}.cni]
bin_dir = "{cni_plugins}"
conf_dir = "{networks}"
[{_CRI}.containerd]
snapshotter = "overlayfs"
default_runtime_name = "runc"
[{_CRI}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[{_CRI}.containerd.runtimes.runc.options]
SystemdCgroup = false
"""
    )
    return settings


def _network(data: Path) -> str:
    return f"""{{"cniVersion": "1.0.0", "name": "tenure", "plugins": [{{
  "type": "bridge", "bridge": "{BRIDGE}", "isGateway": true, "hairpinMode": true, "ipMasq": false,
  "ipam": {{"type": "host-local", "dataDir": "{data / "addresses"}", "ranges": [[{{"subnet": "{POD_RANGE}"}}]],
    "routes": [{{"dst": "0.0.0.0/0"}}]}}
}}]}}
"""


def socket(run: Path) -> Path:
    """containerd's socket."""
    return run / "containerd.sock"


def load(run: Path, archive: Path) -> None:
    """Import an image archive, so that pods find it without a registry."""
    command = ["ctr", f"--address={socket(run)}", "--namespace=k8s.io", "images", "import", str(archive)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0:
        raise CannotStart(f"containerd does not take {archive.name}: {done.stderr.strip()[-500:]}")


def wait_until_served(run: Path, within: float = 20.0) -> None:
    """Return when containerd answers."""
    command = ["ctr", f"--address={socket(run)}", "--connect-timeout=1s", "version"]
    until = time.monotonic() + within
    while subprocess.run(command, capture_output=True, check=False).returncode != 0:
        if time.monotonic() > until:
            raise CannotStart(f"containerd does not answer within {within:.0f} s")
        time.sleep(0.05)


def prepare_cgroups(name: str) -> None:
    """Make the group in which the kubelet puts every pod, in each hierarchy (one with cgroup v2)."""
    for hierarchy in _hierarchies():
        group = hierarchy / name
        group.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):
            # In version 1 a new group starts without processors, and nothing could run in it.
            if hierarchy != _CGROUPS and (hierarchy / setting).exists():
                (group / setting).write_text((hierarchy / setting).read_text())


def end_containers(name: str) -> None:
    """Kill whatever still runs in the node's control groups and remove the groups."""
    for hierarchy in _hierarchies():
        group = hierarchy / name
        if not group.exists():
            continue
        until = time.monotonic() + 5.0
        while (found := _members(group)) and time.monotonic() < until:
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        for below in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
            with suppress(OSError):
                below.rmdir()
        with suppress(OSError):
            group.rmdir()


def unmount_below(*folders: Path) -> None:
    """Unmount everything below the folders, innermost first."""
    mounts = Path("/proc/self/mountinfo").read_text()
    points = [line.split()[4].encode().decode("unicode_escape") for line in mounts.splitlines()]
    wanted = [point for point in points if any(point.startswith(f"{folder}/") for folder in folders)]
    for point in sorted(wanted, reverse=True):
        subprocess.run(["umount", "--lazy", point], capture_output=True, check=False)


def _hierarchies() -> list[Path]:
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    found = [path for path in _CGROUPS.iterdir() if path.is_dir() and not path.is_symlink()]
    return [path for path in found if (path / "cgroup.procs").exists()]


def _members(group: Path) -> list[int]:
    pids: list[int] = []
    for file in group.rglob("cgroup.procs"):
        with suppress(OSError):
            pids.extend(int(line) for line in file.read_text().split())
    return pids
