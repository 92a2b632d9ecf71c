"""The environment of an agent."""

import asyncio
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.agent import LivenessReporter, SettingsError, ThreadedLivenessReporter
from tenure.agent.settings import AgentSettings, open_storage
from tenure.model.masked import Masked


def test_an_empty_environment_gives_an_agent_without_a_database() -> None:
    settings = AgentSettings.from_env({})
    assert settings == AgentSettings(None, "agent", 30.0, None)
    assert AgentSettings.from_env({}, process_kind="critic").process_kind == "critic"


def test_the_operators_four_variables_are_taken_over() -> None:
    settings = AgentSettings.from_env(
        {
            "TENURE_INSTANCE_ID": "5d1f2c9e-uid",
            "TENURE_PROCESS_KIND": "enrichment",
            "TENURE_LIVENESS_INTERVAL": "2.5",
            "TENURE_DATABASE_URL": "postgresql://u:p@h/d",
        },
        process_kind="overruled",
    )
    assert settings.instance_id == "5d1f2c9e-uid"
    assert settings.process_kind == "enrichment"
    assert settings.liveness_interval == 2.5
    assert settings.database_url == Masked("postgresql://u:p@h/d")
    assert "u:p@h" not in repr(settings)


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon", "86401", "1e999", "１h"])
def test_an_interval_that_is_none_is_refused_with_what_is_allowed(value: str) -> None:
    with pytest.raises(SettingsError, match="TENURE_LIVENESS_INTERVAL must be a number of seconds"):
        AgentSettings.from_env({"TENURE_LIVENESS_INTERVAL": value})


@pytest.mark.parametrize("value", ["x" * 64, "a\nb", "\x00"])
def test_a_kind_that_no_label_nor_log_can_hold_is_refused(value: str) -> None:
    with pytest.raises(SettingsError, match="TENURE_PROCESS_KIND must be 1 to 63 characters"):
        AgentSettings.from_env({"TENURE_PROCESS_KIND": value})


def test_an_instance_id_with_control_characters_is_refused() -> None:
    with pytest.raises(SettingsError, match="TENURE_INSTANCE_ID must be at most 200 characters"):
        AgentSettings.from_env({"TENURE_INSTANCE_ID": "a\tb"})


@pytest.mark.accept("M-2")
@pytest.mark.parametrize(
    "url",
    [
        "mysql://canary:canary@h/d",
        "canary",
        "sqlite://",
        "sqlite:///",
        "sqlite://canary/x",
        "postgresql://[canary",
    ],
)
def test_a_url_of_another_kind_is_refused_with_what_is_allowed_and_never_quoted(url: str) -> None:
    with pytest.raises(SettingsError, match="allowed are postgresql://") as caught:
        LivenessReporter.from_env(environ={"TENURE_DATABASE_URL": url})
    assert "canary" not in str(caught.value)
    assert caught.value.__cause__ is None


async def test_a_sqlite_url_names_an_absolute_or_a_relative_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for url, path in [
        (f"sqlite:///{tmp_path}/absolute.db", tmp_path / "absolute.db"),
        ("sqlite:///relative%20one.db", tmp_path / "relative one.db"),
    ]:
        await open_storage(Masked(url), limit=5).migrate()
        connection = sqlite3.connect(path)
        assert connection.execute("SELECT count(*) FROM cks_agent_liveness").fetchone() == (0,)
        connection.close()


@given(st.text(max_size=300), st.text(max_size=100), st.text(max_size=30))
def test_no_environment_gives_anything_but_settings_or_a_settings_error(
    id_: str, kind: str, interval: str
) -> None:
    try:
        settings = AgentSettings.from_env(
            {"TENURE_INSTANCE_ID": id_, "TENURE_PROCESS_KIND": kind, "TENURE_LIVENESS_INTERVAL": interval}
        )
    except SettingsError:
        return
    assert 0 < settings.liveness_interval <= 86_400
    assert 1 <= len(settings.process_kind) <= 63


def test_without_an_instance_id_each_reporter_makes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENURE_INSTANCE_ID", raising=False)
    one, two = LivenessReporter(None, "critic"), ThreadedLivenessReporter(None, "critic")
    assert one.instance_id != two.instance_id
    monkeypatch.setenv("TENURE_INSTANCE_ID", "given")
    assert LivenessReporter(None, "critic").instance_id == "given"


async def test_without_a_database_everything_but_the_heartbeat_works() -> None:
    stop = asyncio.Event()
    async with LivenessReporter.from_env(stop_event=stop, environ={}) as reporter:
        with reporter.task(1, "x"):
            assert reporter.started
    assert not stop.is_set()
