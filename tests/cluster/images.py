"""Container images: the project's, the worker's, a PostgreSQL, and without docker the base below them all.

Each image is an archive in the cache, named by the digest of its inputs; ``ctr images import`` takes it
from there.
"""

import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster import build, builders, cache, packages
from tests.cluster.builders import run
from tests.cluster.say import step

HERE = Path(__file__).resolve().parent
SUITE = "trixie"
PUBLIC_BASE = "python:3.13-slim-trixie"
BASE = "localhost/tenure-base:trixie"
PAUSE = "localhost/tenure-pause:1"
_INCLUDED = ("python3", "python3-venv", "ca-certificates")
_LEFT_OUT = (
    "./var/cache/apt/*",
    "./var/lib/apt/lists/*",
    "./var/log/*",
    "./usr/share/doc/*",
    "./usr/share/man/*",
    "./usr/share/locale/*",
    "./dev/*",
    "./proc/*",
    "./sys/*",
    "./tmp/*",
)
_EPOCH = "1970-01-01T00:00:00Z"
_FORMAT = "3"  # of _archive's result


def base() -> Path:
    """Debian with Python 3.13, as an archive named ``BASE``: what the Dockerfiles take as ``BASE_IMAGE``."""
    layer = _system()
    config = {
        "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
        "Cmd": ["/bin/bash"],
    }
    key = cache.digest([layer.name, BASE, str(config), _FORMAT])
    return cache.artefact("images", f"base-{key}.tar", lambda target: _archive(target, BASE, layer, config))


def _system() -> Path:
    """The base's file system as one layer."""
    key = cache.digest([SUITE, *_INCLUDED, *_LEFT_OUT])

    def make(target: Path) -> None:
        packages.ensure_for_images()
        note = f"making the base image from Debian {SUITE} (about 70 s, once)"
        with step(note), tempfile.TemporaryDirectory() as scratch:
            system = Path(scratch) / "root"
            included = ",".join(_INCLUDED)
            run(
                ["debootstrap", "--variant=minbase", f"--include={included}", SUITE, str(system)],
                "debootstrap",
            )
            exclusions = [f"--exclude={pattern}" for pattern in _LEFT_OUT]
            options = [
                "--create",
                "--numeric-owner",
                f"--file={target}",
                *exclusions,
                f"--directory={system}",
            ]
            run(["tar", *options, "."], "tar")

    return cache.artefact("images", f"system-{key}.tar", make)


def pause() -> Path:
    """The pause image, one static program, as an archive named ``PAUSE``."""
    program = build.pause()
    key = cache.digest([program, PAUSE, _FORMAT])

    def make(target: Path) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            layer = Path(scratch) / "layer.tar"
            with tarfile.open(layer, "w") as tar:
                entry = tarfile.TarInfo("pause")
                entry.mode = 0o755
                entry.size = program.stat().st_size
                with program.open("rb") as content:
                    tar.addfile(entry, content)
            _archive(target, PAUSE, layer, {"Entrypoint": ["/pause"], "User": "65535:65535"})

    return cache.artefact("images", f"pause-{key}.tar", make)


def tenure(tag: str = "tenure:dev") -> Path:
    """The project's image, by the project's Dockerfile."""
    root = cache.REPOSITORY
    inputs = [root / name for name in ("pyproject.toml", "README.md", "requirements", "operator/tenure")]
    return build_image(root / "Dockerfile", root, tag, inputs=[path for path in inputs if path.exists()])


def postgres(tag: str = "postgres:test") -> Path:
    """A PostgreSQL image that takes the official image's environment variables."""
    folder = HERE / "images" / "postgres"
    return build_image(folder / "Dockerfile", folder, tag, inputs=[folder / "entrypoint.py"])


def worker(tag: str = "tenure-worker:dev") -> Path:
    """The example worker, on top of the project's image."""
    folder = cache.REPOSITORY / "examples" / "worker"
    sources = [folder / name for name in ("worker.py", "task_queue.py", "schema.sql")]
    return build_image(
        folder / "Dockerfile",
        folder,
        tag,
        inputs=sources,
        base_archive=tenure(),
        base_argument="TENURE_IMAGE",
    )


def session(tag: str = "tenure-session:dev") -> Path:
    """The example agent and the demo's backend, on top of the project's image."""
    examples = cache.REPOSITORY / "examples"
    agent = [examples / "agent" / f"{name}.py" for name in ("agent", "journal", "turn", "work")]
    texts = [examples / "agent" / "README.md", examples / "worker" / "README.md"]
    return build_image(
        examples / "demo" / "session" / "Dockerfile",
        examples,
        tag,
        inputs=[*agent, *texts, examples / "demo" / "session" / "backend.py"],
        base_archive=tenure(),
        base_argument="TENURE_IMAGE",
    )


def build_image(
    dockerfile: Path,
    context: Path,
    tag: str,
    *,
    inputs: Sequence[Path],
    arguments: Mapping[str, str] | None = None,
    base_archive: Path | None = None,
    base_argument: str = "BASE_IMAGE",
) -> Path:
    """Build an image and return its archive, named ``tag`` for a node that has it imported: with docker
    where its daemon answers, on the public Python image; else with buildah, on our own Debian base.

    ``inputs`` are the files and folders of ``context`` that the build sees, and (with the Dockerfile,
    the arguments and the base) what the cache goes by. ``base_archive`` is another image's archive to
    build on, and ``base_argument`` the Dockerfile's name for it. Raises ``CannotStart``.
    """
    docker = builders.docker_works()
    below: Path | str = base_archive or (PUBLIC_BASE if docker else base())
    settings = [f"{name}={value}" for name, value in sorted((arguments or {}).items())]
    origin = below if isinstance(below, str) else below.name
    key = cache.digest([dockerfile, *inputs, *settings, origin, tag])
    name = tag.rpartition("/")[2].replace(":", "-")

    def make(target: Path) -> None:
        build = builders.with_docker if docker else builders.with_buildah
        with step(f"building image {tag}"), tempfile.TemporaryDirectory() as scratch:
            staged = Path(scratch) / "context"
            _stage(context, inputs, staged)
            build(dockerfile, staged, tag, below, base_argument, settings, target)
        cache.prune("images", f"{name}-", keep=3)

    return cache.artefact("images", f"{name}-{key}.tar", make)


def _stage(context: Path, inputs: Sequence[Path], staged: Path) -> None:
    """Copy just the inputs: the context is small, and nothing that is not in the key can get into the
    image."""
    staged.mkdir()
    for source in inputs:
        target = staged / source.relative_to(context)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target)


def _archive(target: Path, tag: str, layer: Path, config: Mapping[str, object]) -> None:
    """Write an archive as ``docker save`` does, from one layer."""
    sha = hashlib.sha256()
    with layer.open("rb") as content:
        while chunk := content.read(1 << 20):
            sha.update(chunk)
    image = {
        "architecture": _architecture(),
        "os": "linux",
        "config": dict(config),
        # Without a time here buildah never finds a step of an earlier build again.
        "created": _EPOCH,
        "history": [{"created": _EPOCH, "created_by": "tests.cluster.images"}],
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha.hexdigest()}"]},
    }
    described = json.dumps(image).encode()
    config_name = f"{hashlib.sha256(described).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [tag], "Layers": ["layer.tar"]}]
    with tarfile.open(target, "w") as tar:
        for name, data in ((config_name, described), ("manifest.json", json.dumps(manifest).encode())):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        tar.add(layer, "layer.tar")


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
