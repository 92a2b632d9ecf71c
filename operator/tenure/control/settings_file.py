"""The settings file: YAML, TOML or JSON, by its ending."""

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tenure.model.errors import InvalidSettings

_LIMIT = 1024 * 1024
_PLAIN = re.compile(r"[a-z_]{1,40}")
_READERS: dict[str, Callable[[str], object]] = {
    ".yaml": yaml.safe_load,
    ".yml": yaml.safe_load,
    ".toml": tomllib.loads,
    ".json": json.loads,
}


def read_settings_file(path: Path, known: frozenset[str]) -> dict[str, Any]:
    """The settings that the file holds, by name; dashes in names count as underscores.

    Raises ``InvalidSettings`` when it cannot be read, is no table of settings, or names one that is not
    ``known``: a mistyped setting would otherwise be a default that nobody asked for.
    """
    values = _parsed(path)
    problems = []
    settings = {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if name in known:
            settings[name] = value
        else:
            # Only what looks like a name is repeated: it may be anything that somebody pasted.
            shown = repr(name) if _PLAIN.fullmatch(name) else "one"
            problems.append(f"--config (TENURE_SERVER_CONFIG) holds {shown}, which is not a setting")
    if problems:
        raise InvalidSettings(tuple(problems))
    return settings


def _parsed(path: Path) -> dict[Any, Any]:
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise _refused(f"must end in one of {', '.join(_READERS)}")
    problem = "cannot be read"
    try:
        with path.open("rb") as file:
            data = file.read(_LIMIT + 1)
        if len(data) > _LIMIT:
            raise _refused(f"is longer than {_LIMIT} bytes")
        problem = f"is not valid {path.suffix.lower()[1:].upper()}"
        values = reader(data.decode("utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        values = problem
    if values is problem:
        # Outside of the handler: a parser's exception quotes the file.
        raise _refused(problem)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise _refused("must be a table of settings")
    return values


def _refused(said: str) -> InvalidSettings:
    return InvalidSettings((f"--config (TENURE_SERVER_CONFIG) {said}",))
