"""Whether an instance may be made as it was asked for. Nothing is quoted of what was received."""

import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tenure.control.acp import Launch
from tenure.control.instances.config import CreateRefused, HostingConfig
from tenure.protocol.messages import CreateRequest

PROTOCOL = "acp"


@dataclass(frozen=True)
class Admitted:
    """A request that was examined: what to run, and where."""

    request: CreateRequest = field(repr=False)
    launch: Launch


def examine(request: CreateRequest, config: HostingConfig, inherited: Mapping[str, str]) -> Admitted:
    """What to run for a request. ``inherited`` is the server's own environment.

    Paths become canonical: links are followed *before* it is judged whether a path is inside the permitted
    roots, and only the result is used. Raises ``CreateRefused`` with status 400.
    """
    if request.protocol != PROTOCOL:
        raise CreateRefused(400, f'protocol has to be "{PROTOCOL}": no other one is spoken here.')
    argv = _words(request.agent_command)
    workspace = _directory("workspace_path", request.workspace_path, config.roots)
    sources = tuple(
        _directory("workspace_source_roots", root, config.roots) for root in request.workspace_source_roots
    )
    own = {name: value.reveal() for name, value in request.env.items()}
    env = {name: value for name, value in inherited.items() if name not in config.scrub} | own
    return Admitted(request, Launch(argv, workspace, env, (workspace, *sources), config.brand))


def _words(command: str) -> tuple[str, ...]:
    try:
        argv = tuple(shlex.split(command))
    except ValueError:
        argv = ()
    if not argv or not argv[0]:
        raise CreateRefused(
            400, "agent_command has to be a program and its arguments, quoted as for a shell; none is run."
        )
    return argv


def _directory(what: str, given: str, roots: Iterable[Path]) -> Path:
    path = Path(given)
    if path.is_absolute():
        try:
            canonical = path.resolve(strict=True)
            # realpath of a directory that cannot be entered would only fail when the agent starts.
            usable = canonical.is_dir() and os.access(canonical, os.X_OK)
        except (OSError, RuntimeError, ValueError):
            usable = False
        if usable and any(canonical.is_relative_to(root) for root in roots):
            return canonical
    allowed = ", ".join(str(root) for root in roots) or "none is configured"
    sentence = (
        f"{what} has to be an absolute path of an existing directory inside a permitted root ({allowed})."
    )
    raise CreateRefused(400, sentence[:4096])
