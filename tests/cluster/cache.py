"""Artefacts that are made once: a git-ignored folder, keyed by the content of what they are made from.

The first level belongs to this clone (``TENURE_CACHE``, or ``.cache`` in the repository). Without
``TENURE_CACHE`` there is a second level for all clones of the same user, so that a fresh clone on the same
machine does not compile again.
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def root() -> Path:
    """This clone's cache folder."""
    return Path(os.environ.get("TENURE_CACHE") or REPOSITORY / ".cache")


def shared() -> Path | None:
    """The user's cache folder, or None where ``TENURE_CACHE`` names the only one to use."""
    if os.environ.get("TENURE_CACHE"):
        return None
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tenure"


def digest(parts: Iterable[str | bytes | Path]) -> str:
    """Twenty hex digits over texts and the content of files; a folder counts with every file in it, by
    name."""
    sha = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            for file in _files(part):
                name = file.name if file == part else file.relative_to(part).as_posix()
                _add(sha, name.encode())
                _add(sha, file.read_bytes())
        else:
            _add(sha, part if isinstance(part, bytes) else part.encode())
    return sha.hexdigest()[:20]


def _add(sha: "hashlib._Hash", data: bytes) -> None:
    sha.update(len(data).to_bytes(8, "big") + data)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts)


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes for as long as the block runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def artefact(folder: str, name: str, make: Callable[[Path], None]) -> Path:
    """The file ``folder/name`` of the cache; ``make(path)`` writes it when neither level has it.

    ``name`` must contain the digest of everything the file depends on: an existing file is never made again.
    """
    wanted = root() / folder / name
    if wanted.exists():
        return wanted
    second = shared()
    with lock(wanted.parent / f".{name}.lock"):
        if wanted.exists():
            return wanted
        if second is None or not (second / folder / name).exists():
            scratch = wanted.parent / f".{name}.{os.getpid()}.part"
            try:
                make(scratch)
                scratch.replace(wanted)
            finally:
                scratch.unlink(missing_ok=True)
            if second is not None:
                _copy(wanted, second / folder / name)
        else:
            _copy(second / folder / name, wanted)
    return wanted


def prune(folder: str, prefix: str, *, keep: int) -> None:
    """Keep the newest files of a kind, on both levels: images are large, and each edit makes another."""
    for level in (root(), shared()):
        if level is None or not (level / folder).is_dir():
            continue
        found = [path for path in (level / folder).iterdir() if path.name.startswith(prefix)]
        for path in sorted(found, key=lambda each: each.stat().st_mtime, reverse=True)[keep:]:
            path.unlink(missing_ok=True)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.parent / f".{target.name}.{os.getpid()}.part"
    try:
        scratch.hardlink_to(source)
    except OSError:
        shutil.copy2(source, scratch)
    scratch.replace(target)
