"""Names of children, and the hash of a template."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.model.ids import MAX_ORDINAL, child_name, ordinal_of, template_hash

LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
names = st.from_regex(rf"{LABEL}(\.{LABEL})*", fullmatch=True).filter(lambda name: len(name) <= 63)
uids = st.uuids().map(str)
ordinals = st.integers(1, MAX_ORDINAL)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def _shuffled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shuffled(value[key]) for key in reversed(value)}
    return [_shuffled(item) for item in value] if isinstance(value, list) else value


@given(names, uids, ordinals)
def test_a_childs_name_is_a_dns_label_of_at_most_63_characters(name: str, uid: str, ordinal: int) -> None:
    child = child_name(name, uid, ordinal)
    assert len(child) <= 63
    assert re.fullmatch(LABEL, child)


@given(names, uids, ordinals)
def test_a_childs_name_tells_its_ordinal(name: str, uid: str, ordinal: int) -> None:
    assert ordinal_of(child_name(name, uid, ordinal), name, uid) == ordinal


@given(names, uids, st.sets(ordinals, min_size=2, max_size=20))
def test_no_two_ordinals_share_a_name(name: str, uid: str, some: set[int]) -> None:
    assert len({child_name(name, uid, ordinal) for ordinal in some}) == len(some)


@given(names, uids, uids, ordinals, ordinals)
def test_an_object_made_again_under_its_name_shares_no_child(
    name: str, uid: str, other: str, first: int, second: int
) -> None:
    if uid != other:
        assert child_name(name, uid, first) != child_name(name, other, second)
        assert ordinal_of(child_name(name, uid, first), name, other) is None


def test_the_form_is_name_owner_ordinal() -> None:
    # printf u-1 | sha256sum
    assert child_name("team.reviewer", "u-1", 7) == "team-reviewer-a24a7f55-7"


def test_long_names_that_begin_alike_differ_by_owner() -> None:
    assert child_name("n" * 45 + "a", "u-1", 1) != child_name("n" * 45 + "b", "u-2", 1)


def test_a_cut_behind_a_dash_leaves_no_pair_of_dashes() -> None:
    assert "--" not in child_name("n" * 39 + "-tail", "u-1", 1)


@pytest.mark.parametrize("ordinal", [0, -1, MAX_ORDINAL + 1])
def test_an_ordinal_out_of_range_names_nothing(ordinal: int) -> None:
    with pytest.raises(ValueError, match="an ordinal is from 1 to"):
        child_name("reviewer", "u-1", ordinal)


def test_an_object_without_uid_has_no_children() -> None:
    with pytest.raises(ValueError, match="without a UID"):
        child_name("reviewer", "", 1)


@pytest.mark.parametrize("suffix", ["", "x", "01", "0", "1x", "-1", "+1", "1 ", "¹", "٣", "9" * 30])
def test_a_name_that_was_never_given_has_no_ordinal(suffix: str) -> None:
    assert ordinal_of(child_name("reviewer", "u-1", 1)[:-1] + suffix, "reviewer", "u-1") is None


@given(st.dictionaries(st.text(), json_values))
def test_the_order_of_keys_does_not_change_a_templates_hash(template: dict[str, Any]) -> None:
    assert template_hash(template) == template_hash(_shuffled(template))


@given(st.dictionaries(st.text(), json_values))
def test_a_template_read_again_has_the_same_hash(template: dict[str, Any]) -> None:
    assert template_hash(json.loads(json.dumps(template))) == template_hash(template)


def test_a_templates_hash_never_changes_between_versions() -> None:
    """A release that hashes differently would replace every agent of every cluster."""
    template = {
        "spec": {"containers": [{"name": "agent", "image": "agent:1", "args": ["ü", 1, 1.5, None, True]}]}
    }
    assert template_hash(template) == "36843c4b706f22b7"


@pytest.mark.parametrize(
    "other",
    [
        {"spec": {"containers": [{"name": "b"}, {"name": "a"}]}},
        {"spec": {"containers": [{"name": "a"}]}},
        {"spec": {"containers": [{"name": "a"}, {"name": "b", "tty": False}]}},
        {"spec": {"containers": [{"name": "a"}, {"name": "b"}]}, "metadata": {}},
    ],
)
def test_any_other_difference_changes_a_templates_hash(other: dict[str, Any]) -> None:
    assert template_hash(other) != template_hash({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}})
