"""Logs are JSON lines without secrets, whichever library wrote them."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from tenure.model.masked import Masked
from tenure.model.redaction import redact
from tenure.telemetry import logs

SECRET = "hunter2secret"


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    named = {name: logging.getLogger(name).level for name in ("kopf.objects", "aiohttp.access", "asyncio")}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in named.items():
        logging.getLogger(name).setLevel(before)
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_json_object_on_one_line() -> None:
    stream = io.StringIO()
    logs.configure("INFO", stream=stream)
    structlog.stdlib.get_logger("tenure.events").info(
        "a stop\nwas asked for", reason="StopRequested", name="a"
    )
    (line,) = lines(stream)
    assert line["event"] == "a stop\nwas asked for"
    assert (line["reason"], line["name"], line["level"]) == ("StopRequested", "a", "info")
    assert line["logger"] == "tenure.events"
    assert line["time"].endswith("Z")


def test_lines_of_the_standard_library_look_the_same() -> None:
    stream = io.StringIO()
    logs.configure("INFO", stream=stream)
    logging.getLogger("some.library").warning("%d things", 3, extra={"namespace": "a", "thing": object()})
    (line,) = lines(stream)
    assert (line["event"], line["level"], line["logger"]) == ("3 things", "warning", "some.library")
    assert line["namespace"] == "a"
    assert "thing" not in line


def test_the_level_is_the_one_of_the_settings_and_kopf_is_quiet() -> None:
    stream = io.StringIO()
    logs.configure("WARNING", stream=stream)
    structlog.stdlib.get_logger("tenure").info("not this")
    logs.configure("INFO", stream=stream)
    logging.getLogger("kopf.objects").info("nor this")
    logging.getLogger("aiohttp.access").info("nor this")
    logging.getLogger("kopf.reactor").info("but this")
    assert [line["event"] for line in lines(stream)] == ["but this"]


@pytest.mark.accept("M-2")
@pytest.mark.parametrize("as_json", [True, False])
def test_no_secret_passes_whatever_way_it_comes(as_json: bool) -> None:
    stream = io.StringIO()
    logs.configure("DEBUG", stream=stream, json=as_json)
    url = f"postgresql://agent:{SECRET}@db:5432/x"
    ours, theirs = structlog.stdlib.get_logger("tenure"), logging.getLogger("asyncpg")
    ours.info("connecting", url=Masked(url), nested={"deep": [Masked(url), url]}, error=ValueError(url))
    ours.info(f"connecting to {url}")
    ours.info("headers", headers={"Authorization": f"Bearer {SECRET}"}, password=f"password={SECRET}")
    theirs.error("cannot reach %s", url)
    theirs.error("with dsn host=db password=%s user=x", SECRET)
    try:
        raise ConnectionError(f"cannot reach {url}")
    except ConnectionError:
        ours.exception("failed")
        theirs.exception("failed")
    text = stream.getvalue()
    assert SECRET not in text
    assert "***" in text
    assert "ConnectionError" in text
    assert text.count("Traceback") == 2


@pytest.mark.parametrize(
    "text",
    [
        f"postgres://:{SECRET}@h/d",
        f"redis+tls://u:{SECRET}@h",
        f'{{"api_key": "{SECRET}"}}',
        f"token={SECRET}&x=1",
        f"Authorization: Bearer {SECRET}",
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_a_secret_in_a_text_is_redacted(text: str) -> None:
    assert SECRET not in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "https://docs.example/x?y=1",
        "the pod agent-1 ended with code 0: ok",
        "postgresql://db:5432/tasks",
        "a@b.example wrote: stop",
        "restartToken changed",
    ],
)
def test_an_innocent_text_is_left_alone(text: str) -> None:
    assert redact(text) == text


def test_a_terminal_gets_readable_lines() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    logs.configure("INFO", stream=stream)
    structlog.stdlib.get_logger("tenure").info("leading", scope="all")
    assert "leading" in stream.getvalue()
    assert not stream.getvalue().startswith("{")
