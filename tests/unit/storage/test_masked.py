"""A masked value shows nothing, whatever one does with it."""

import copy
import json
import logging
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.model.masked import Masked

SECRET = "postgresql://user:canary-s3cret@host/db"


@pytest.mark.accept("M-2")
def test_no_usual_way_of_showing_it_shows_it(caplog: pytest.LogCaptureFixture) -> None:
    masked = Masked(SECRET)
    logging.getLogger("x").warning("url %s %r %s", masked, masked, {"url": masked})
    shown = [
        str(masked),
        repr(masked),
        f"{masked}",
        f"{masked!r}",
        f"{masked:>30}",
        "%s" % masked,  # noqa: UP031
        repr([masked]),
    ]
    assert not [text for text in [*shown, caplog.text] if "canary" in text]
    assert "***" in caplog.text


def test_it_is_neither_pickled_nor_put_into_json_nor_changed() -> None:
    masked = Masked(SECRET)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError):
            pickle.dumps(masked, protocol)
    with pytest.raises(TypeError):
        json.dumps({"url": masked})
    with pytest.raises(AttributeError):
        masked.text = "x"  # type: ignore[attr-defined]
    assert not hasattr(masked, "__dict__")
    assert copy.copy(masked) is masked
    assert copy.deepcopy([masked])[0] is masked


@given(st.text(), st.text())
def test_it_is_equal_to_the_same_secret_and_to_nothing_else(one: str, two: str) -> None:
    assert (Masked(one) == Masked(two)) is (one == two)
    assert Masked(one) != one
    assert Masked(one).reveal() == one
    assert hash(Masked(one)) == hash(Masked(one))
    assert bool(Masked(one)) is bool(one)
