"""Two ways to build an image from a Dockerfile: docker where its daemon answers, buildah as root elsewhere."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache as once
from pathlib import Path

from tests.cluster import cache, packages
from tests.cluster.say import CannotStart, say

_CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")


@once
def docker_works() -> bool:
    """True where docker's daemon answers."""
    if shutil.which("docker") is None or os.environ.get("TENURE_CLUSTER_KIND") == "embedded":
        return False
    words = ["docker", "version", "--format={{.Server.Version}}"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def with_docker(
    dockerfile: Path,
    context: Path,
    tag: str,
    below: Path | str,
    base_argument: str,
    settings: Sequence[str],
    target: Path,
) -> None:
    """Build and save with docker; ``below`` is an image's archive or the name of a public image."""
    name = below if isinstance(below, str) else _loaded(below)
    options = [f"--build-arg={setting}" for setting in (f"{base_argument}={name}", *settings)]
    run(
        [
            "docker",
            "build",
            "--quiet",
            f"--tag={tag}",
            f"--file={dockerfile}",
            *options,
            *_secret(),
            str(context),
        ]
    )
    run(["docker", "save", f"--output={target}", tag])


def with_buildah(
    dockerfile: Path,
    context: Path,
    tag: str,
    below: Path | str,
    base_argument: str,
    settings: Sequence[str],
    target: Path,
) -> None:
    """Build and save with buildah, which needs no daemon but root; ``below`` is an image's archive."""
    if os.geteuid() != 0:
        raise CannotStart(
            "building images without docker needs root: run as root, or use kind where docker works"
        )
    packages.ensure_for_images()
    with cache.lock(cache.root() / "buildah" / ".lock"):
        name = _buildah("pull", "--quiet", f"docker-archive:{below}").split()[-1]
        options = [f"--build-arg={setting}" for setting in (f"{base_argument}={name}", *settings)]
        words = ["--isolation=chroot", "--pull-never", "--layers", "--format=docker", f"--tag={tag}"]
        _buildah("build", *words, f"--file={dockerfile}", *options, *_secret(), str(context))
        _buildah("push", "--quiet", tag, f"docker-archive:{target}:docker.io/library/{tag}")


def run(command: Sequence[str], name: str = "") -> str:
    """A command's output; ``CannotStart`` after showing what it said when it fails."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        say((done.stdout + done.stderr)[-4000:])
        raise CannotStart(f"{name or ' '.join(command[:2])} failed: see its words above")
    return done.stdout


def _secret() -> list[str]:
    """The machine may be behind a registry with an authority of its own; the image never contains it."""
    return [f"--secret=id=ca-bundle,src={_CA_BUNDLE}"] if _CA_BUNDLE.exists() else []


def _loaded(archive: Path) -> str:
    return run(["docker", "load", "--quiet", f"--input={archive}"]).strip().rpartition("Loaded image: ")[2]


def _buildah(*arguments: str) -> str:
    storage = cache.root() / "buildah"
    folders = [f"--root={storage / 'root'}", f"--runroot={storage / 'run'}"]
    return run(["buildah", *folders, "--storage-driver=overlay", *arguments], "buildah")
