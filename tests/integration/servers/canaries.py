"""Secrets that must be found nowhere but where they belong, and the search for them (M-2)."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECRET_KEYS = {"credential", "nonce", "tls.key", "url"}
"""Keys of Secrets whose values are secret; the others are names, addresses and certificates."""
PLANTED = "KANARIE-7f2e"
"""Where a test may choose the secret itself, it begins with this."""
_SHORTEST = 12


@dataclass
class Canaries:
    """Every secret value that a world has met, by a name that may be printed."""

    known: dict[str, str] = field(default_factory=dict)

    def learn(self, key: str, value: str) -> None:
        """A value of a Secret, or of anything else that holds one."""
        if key == "tls.key":
            # Not the armour; a line of the middle is enough.
            lines = [line for line in value.splitlines() if line and not line.startswith("-----")]
            value = lines[0] if lines else ""
        if key in SECRET_KEYS and len(value) >= _SHORTEST:
            self.known.setdefault(value, f"{key} {len(self.known)}")

    def found_in(self, place: str, text: str) -> list[str]:
        """A sentence for each secret in the text; none of them quotes it."""
        found = [f"{place} has the secret '{name}'" for value, name in self.known.items() if value in text]
        return found + ([f"{place} has a planted secret"] if PLANTED in text else [])

    def found_in_files(self, files: Iterable[Path]) -> list[str]:
        """The same for files; one that cannot be read holds nothing."""
        found: list[str] = []
        for file in files:
            try:
                found += self.found_in(str(file), file.read_text(errors="replace"))
            except OSError:
                continue
        return found

    def found_in_objects(self, place: str, objects: Iterable[Any]) -> list[str]:
        """The same for JSON; ``data`` of Secrets must not be among it."""
        return [
            sentence for each in objects for sentence in self.found_in(place, json.dumps(each, default=str))
        ]
