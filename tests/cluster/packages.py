"""Debian packages that the node and the image builder need; installed when missing, and no service is
started by it."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.say import CannotStart, say, step

CNI_FOLDERS = (Path("/opt/cni/bin"), Path("/usr/lib/cni"))
_POLICY = Path("/usr/sbin/policy-rc.d")
_NODE = {
    "containerd": "containerd",
    "runc": "runc",
    "nft": "nftables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "mount": "mount",
    "nsenter": "util-linux",
}
_IMAGES = {"debootstrap": "debootstrap", "buildah": "buildah"}


def ensure_for_node() -> None:
    """Everything that the node's network namespace runs beside the Kubernetes programs."""
    missing = _missing(_NODE)
    if cni_folder() is None:
        missing.append("containernetworking-plugins")
    _ensure(missing)


def ensure_for_images() -> None:
    """What builds images without docker."""
    _ensure(_missing(_IMAGES))


def cni_folder() -> Path | None:
    """The folder with the CNI plugins ``bridge`` and ``host-local``."""
    for folder in CNI_FOLDERS:
        if (folder / "bridge").exists() and (folder / "host-local").exists():
            return folder
    return None


def _missing(commands: dict[str, str]) -> list[str]:
    search = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return [package for command, package in commands.items() if shutil.which(command, path=search) is None]


def _ensure(packages: Sequence[str]) -> None:
    if not packages:
        return
    names = " ".join(sorted(packages))
    if os.geteuid() != 0:
        raise CannotStart(
            f"installing {names} needs root: run as root, or install them, or set KUBECONFIG to a cluster"
        )
    if shutil.which("apt-get") is None:
        raise CannotStart(
            f"{names} missing, and only Debian's apt-get is known here: install them, or set KUBECONFIG"
        )
    with step(f"installing Debian packages {names}"), _no_service_starts():
        _apt("update")
        _apt("install", "--yes", "--no-install-recommends", *packages)


@contextmanager
def _no_service_starts() -> Iterator[None]:
    """Keep the packages' own services off, containerd's above all: the node runs its own, with its own
    folders."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink(missing_ok=True)


def _apt(*arguments: str) -> None:
    command = ["apt-get", "-qq", "-o", "Dpkg::Use-Pty=0", "-o", "DPkg::Lock::Timeout=120", *arguments]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        say((done.stdout + done.stderr)[-3000:])
        raise CannotStart(f"'apt-get {arguments[0]}' failed: see its words above")
