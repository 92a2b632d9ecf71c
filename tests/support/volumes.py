"""Volumes of the kubelet stand-in: directories on this machine, seen by a container where it mounts them.

A container with mounts gets a mount namespace of its own. What is mounted: ``secret`` and ``configMap`` (kept up
to date, as a kubelet does, by swapping the link ``..data``), ``emptyDir`` (lives as long as the pod),
``persistentVolumeClaim`` (a directory per claim, lives as long as the stand-in's folder). Volumes of other types
are left out.
"""

import base64
import os
import secrets
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.support.api import AdminClient, Object, path

_KINDS = {"secret": ("secrets", "secretName"), "configMap": ("configmaps", "name")}
_NEVER_CREATED = Path("/")
CHECKOUT = Path(__file__).resolve().parents[2]
"""Where the programs are that containers run; it may lie below ``/tmp``, on which pods mount their own."""


class StartRefused(Exception):
    """The container cannot be started; the message is what a kubelet would report."""


@dataclass(frozen=True)
class Mount:
    """A directory (or file) of this machine, and where a container sees it."""

    source: Path
    target: Path
    read_only: bool


class PodVolumes:
    """The volumes of one pod, below ``folder``; claims are below ``claims``."""

    def __init__(self, client: AdminClient, pod: Object, folder: Path, claims: Path) -> None:
        self._client = client
        self._namespace: str = pod["metadata"]["namespace"]
        self._volumes: list[Object] = pod["spec"].get("volumes") or []
        self._folder = folder
        self._claims = claims
        self._sources: dict[str, Path] = {}
        self._grounds = 0
        used = {
            mount["name"] for spec in pod["spec"]["containers"] for mount in spec.get("volumeMounts") or []
        }
        self._volumes = [volume for volume in self._volumes if volume["name"] in used]

    @property
    def changing(self) -> bool:
        """Whether something of it follows objects of the API."""
        return any(kind in volume for volume in self._volumes for kind in _KINDS)

    async def prepare(self) -> None:
        """Make every volume. Raises ``StartRefused`` when a Secret, ConfigMap or claim is missing."""
        for volume in self._volumes:
            name = volume["name"]
            if "emptyDir" in volume:
                self._sources[name] = _directory(self._folder / "volumes" / name)
            elif "persistentVolumeClaim" in volume:
                self._sources[name] = await self._claim(volume["persistentVolumeClaim"]["claimName"])
        await self.refresh()

    async def refresh(self) -> None:
        """Bring the files of Secrets and ConfigMaps up to date. Raises ``StartRefused`` as ``prepare``."""
        for volume in self._volumes:
            for kind in _KINDS:
                if kind in volume:
                    target = _directory(self._folder / "volumes" / volume["name"])
                    self._sources[volume["name"]] = target
                    _swap(target, await self._files(kind, volume[kind]))

    def mounts(self, container: Object) -> list[Mount]:
        """What a container of the pod sees."""
        found = []
        for wanted in container.get("volumeMounts") or []:
            source = self._sources.get(wanted["name"])
            if source is not None:
                volatile = self._folder / "volumes" / wanted["name"] / "..data"
                read_only = bool(wanted.get("readOnly")) or volatile.is_symlink()
                found.append(
                    Mount(source / wanted.get("subPath", ""), Path(wanted["mountPath"]), read_only=read_only)
                )
        if any(CHECKOUT.is_relative_to(mount.target) for mount in found):
            found.append(Mount(CHECKOUT, CHECKOUT, read_only=False))
        return found

    def ground(self) -> Path:
        """A fresh private directory for what a container's mounts need below them."""
        self._grounds += 1
        return _directory(self._folder / "grounds" / str(self._grounds))

    def remove(self) -> None:
        """Delete all of it but the claims."""
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _claim(self, name: str) -> Path:
        found = await self._client.find(path("persistentvolumeclaims", self._namespace, name))
        if found is None:
            raise StartRefused(f'persistentvolumeclaim "{name}" not found')
        return _directory(self._claims / f"{self._namespace}_{name}_{found['metadata']['uid']}")

    async def _files(self, kind: str, source: Object) -> dict[str, bytes]:
        plural, key = _KINDS[kind]
        found = await self._client.find(path(plural, self._namespace, source[key]))
        if found is None:
            if source.get("optional"):
                return {}
            raise StartRefused(f'{plural[:-1]} "{source[key]}" not found')
        files = {name: text.encode() for name, text in (found.get("data") or {}).items()}
        if kind == "secret":
            files = {name: base64.b64decode(text) for name, text in files.items()}
        if "items" not in source:
            return files
        return {item["path"]: files[item["key"]] for item in source["items"] if item["key"] in files}


def require_mounts() -> None:
    """Skip the test where this machine gives no mount namespace."""
    if not mounts_possible():
        pytest.skip("pods with volumes need a mount namespace, which 'unshare --mount' does not give here")


@cache
def mounts_possible() -> bool:
    """Whether a container can have a mount namespace."""
    with tempfile.TemporaryDirectory() as folder:
        words = [*namespaces(mounts=True), "sh", "-c", 'mount --bind "$0" "$0"', folder]
        try:
            return subprocess.run(words, capture_output=True, check=False, timeout=10).returncode == 0
        except OSError:
            return False


def namespaces(*, mounts: bool) -> list[str]:
    """The words before a command that gives it a host name, and mounts, of its own."""
    flags = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", "--uts", *(["--mount"] if mounts else []), *flags]


def mount_script(mounts: Sequence[Mount], ground: Path, hidden: Path, working: str) -> str:
    """The shell commands that make these mounts in a fresh mount namespace and go to the directory ``working``.

    ``hidden``: the directory that holds every source; what is mounted over it comes last.
    """
    lines = ["set -e", *(_make_room(mounts, ground))]
    for mount in sorted(mounts, key=lambda one: (hidden.is_relative_to(one.target), -len(one.target.parts))):
        # A mount inside of another is made inside of that one's source, which is then bound with all it holds.
        target = _within(mount.target, [other for other in mounts if other is not mount])
        lines.append(f"mkdir -p {_word(target)}" if mount.source.is_dir() else f": >>{_word(target)}")
        lines.append(f"mount --rbind {_word(mount.source)} {_word(target)}")
        if mount.read_only:
            lines.append(f"mount -o remount,bind,ro {_word(target)}")
    return "\n".join([*lines, f"cd {_word(working)}", ""])


def _make_room(mounts: Sequence[Mount], ground: Path) -> list[str]:
    """Overlays, so that directories to mount on are made for this container only, and not on the machine."""
    lines = []
    for number, below in enumerate(sorted({_deepest(mount.target) for mount in mounts})):
        changes, work = (_directory(ground / f"{number}-{kind}") for kind in ("changes", "work"))
        options = f"lowerdir={below},upperdir={changes},workdir={work}"
        # Where overlays are not to be had, the directories are made on the machine after all.
        if below != _NEVER_CREATED and not _shared(below):
            lines.append(f"mount -t overlay overlay -o {_word(options)} {_word(below)} 2>/dev/null || :")
    return lines


def _deepest(target: Path) -> Path:
    """The deepest directory on the way that exists; "/" for a target that exists itself."""
    if target.exists():
        return _NEVER_CREATED
    return next(parent for parent in target.parents if parent.is_dir()).resolve()


def _shared(below: Path) -> bool:
    """Whether tests look there for what their programs write."""
    temporary = Path(tempfile.gettempdir()).resolve()
    return below.is_relative_to(temporary) or temporary.is_relative_to(below)


def _within(target: Path, others: Sequence[Mount]) -> Path:
    around = [other for other in others if target.is_relative_to(other.target) and target != other.target]
    if not around:
        return target
    nearest = max(around, key=lambda other: len(other.target.parts))
    return nearest.source / target.relative_to(nearest.target)


def _swap(target: Path, files: Mapping[str, bytes]) -> None:
    """Replace what is in a volume, as ``AtomicWriter`` of the kubelet does: at once, or not at all."""
    link = target / "..data"
    before = target / os.readlink(link) if link.is_symlink() else None
    if before is not None and _content(before) == dict(files):
        return
    after = _directory(target / f"..{secrets.token_hex(8)}")
    for name, content in files.items():
        _directory((after / name).parent)
        (after / name).write_bytes(content)
    temporary = target / "..data_tmp"
    temporary.symlink_to(after.name)
    temporary.replace(link)
    heads = {Path(name).parts[0] for name in files}
    for head in heads:
        with suppress(FileExistsError):
            (target / head).symlink_to(Path("..data") / head)
    for entry in target.iterdir():
        if not entry.name.startswith("..") and entry.name not in heads:
            entry.unlink()
    if before is not None:
        shutil.rmtree(before, ignore_errors=True)


def _content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def _directory(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _word(text: Path | str) -> str:
    return shlex.quote(str(text))
