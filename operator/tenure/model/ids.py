"""Names that are computed: children of an object, and the hash by which a template is recognised.

A child's name is ``<object name>-<owner>-<ordinal>``: the object's name with dashes for dots, its first 40
characters; eight hex digits of the SHA-256 of the owner's UID; a number that never recurs. The result is a
DNS label of at most 63 characters, which is where kubelets cut host names, so that a pod's host name is its
whole name.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

NAME_LIMIT = 63
PREFIX_LIMIT = 40
OWNER_DIGITS = 8
HASH_DIGITS = 16
MAX_ORDINAL = 10 ** (NAME_LIMIT - PREFIX_LIMIT - OWNER_DIGITS - 2) - 1


def child_name(object_name: str, owner_uid: str, ordinal: int) -> str:
    """The name of the child number ``ordinal`` (1 or more) of the object.

    ``object_name`` is a valid Kubernetes object name, dots allowed. Raises ``ValueError`` for an ordinal
    that is out of range or an empty UID: neither can name anything.
    """
    if not 1 <= ordinal <= MAX_ORDINAL:
        raise ValueError(f"an ordinal is from 1 to {MAX_ORDINAL}, not {ordinal}")
    return f"{_stem(object_name, owner_uid)}{ordinal}"


def family_name(object_name: str, owner: str) -> str:
    """The name that all children of the object share, for those of which there is only one of a kind.

    ``owner`` is the object's UID, or whatever else it is that the child belongs to. Raises ``ValueError`` when it is
    empty.
    """
    return _stem(object_name, owner).removesuffix("-")


def ordinal_of(child: str, object_name: str, owner_uid: str) -> int | None:
    """The ordinal of a child's name, or None when the name is not one that ``child_name`` gives to this
    object."""
    stem = _stem(object_name, owner_uid)
    digits = child.removeprefix(stem)
    if digits == child or not (digits.isascii() and digits.isdigit()):
        return None
    ordinal = int(digits)
    return ordinal if 1 <= ordinal <= MAX_ORDINAL and child == f"{stem}{ordinal}" else None


def template_hash(template: Mapping[str, Any]) -> str:
    """A short hash of ``spec.template`` as it is stored.

    It covers nothing that the operator adds when it renders the pod, so a new operator replaces no agent.
    The order of keys does not matter; the order of lists does.
    """
    canonical = json.dumps(template, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:HASH_DIGITS]


def _stem(object_name: str, owner_uid: str) -> str:
    if not owner_uid:
        raise ValueError("an object without a UID has no children")
    # The cut may fall behind a dash; two in a row would be legal, but read like a mistake.
    prefix = object_name.replace(".", "-")[:PREFIX_LIMIT].rstrip("-")
    owner = hashlib.sha256(owner_uid.encode()).hexdigest()[:OWNER_DIGITS]
    return f"{prefix}-{owner}-"
