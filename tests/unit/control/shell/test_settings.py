"""Settings come from flags, variables and a file, in this order, and a wrong one refuses to start in words."""

import json
from pathlib import Path
from typing import Any

import pytest

from tenure.control.settings import ServerSettings, Setting, default_of, flag_of, load_settings, variable_of
from tenure.model.errors import InvalidSettings

PASTED = "postgresql://me:hunter2@db/x"


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("TENURE_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def flags(tmp_path: Path) -> dict[str, Any]:
    """What every server needs."""
    nonce = tmp_path / "nonce"
    nonce.write_text("x" * 32)
    return {"nonce_file": str(nonce), "home": str(tmp_path / "home")}


def refused(flags: dict[str, Any], config: Path | None = None) -> tuple[str, ...]:
    with pytest.raises(InvalidSettings) as error:
        load_settings(flags, config)
    return error.value.problems


def test_the_defaults_are_those_of_the_protocol(flags: dict[str, Any]) -> None:
    settings = load_settings(flags)
    assert (settings.host, settings.unowned_period, settings.retention_limit) == ("127.0.0.1", 600, 100)
    assert settings.period.ms == 600_000
    assert not settings.period.changes


def test_each_process_is_another_server(flags: dict[str, Any]) -> None:
    assert load_settings(flags).identity != load_settings(flags).identity


def test_a_flag_goes_before_its_variable_before_the_file_before_the_default(
    flags: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "server.yaml"
    config.write_text("port: 1001\nidle-timeout: 11\nretention_limit: 12\n")
    monkeypatch.setenv("TENURE_SERVER_PORT", "1002")
    monkeypatch.setenv("TENURE_SERVER_IDLE_TIMEOUT", "22")
    settings = load_settings(flags | {"port": "1003", "log_level": None}, config)
    assert (settings.port, settings.idle_timeout, settings.retention_limit) == (1003, 22, 12)
    assert settings.log_level == "INFO"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "port: 7\nworkspace-roots: [/tmp]\n"),
        ("a.toml", 'port = 7\nworkspace_roots = ["/tmp"]\n'),
        ("a.json", json.dumps({"port": 7, "workspace_roots": ["/tmp"]})),
    ],
)
def test_the_file_may_be_yaml_toml_or_json(
    flags: dict[str, Any], tmp_path: Path, name: str, text: str
) -> None:
    config = tmp_path / name
    config.write_text(text)
    settings = load_settings(flags, config)
    assert (settings.port, settings.workspace_roots) == (7, (Path("/tmp"),))


def test_the_file_may_be_named_by_a_variable(
    flags: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.json").write_text('{"port": 7}')
    monkeypatch.setenv("TENURE_SERVER_CONFIG", str(tmp_path / "a.json"))
    assert load_settings(flags).port == 7


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", f"pord: 1\n{PASTED!r}: 2\n"),
        ("a.yaml", f"'{PASTED}"),
        ("a.json", f'["{PASTED}"]'),
        ("a.toml", f"port = {PASTED}"),
        ("a.ini", PASTED),
        ("a.json", "[" * 100_000),
    ],
)
def test_a_file_that_is_no_use_is_refused_without_quoting_it(
    flags: dict[str, Any], tmp_path: Path, name: str, text: str
) -> None:
    config = tmp_path / name
    config.write_text(text)
    problems = refused(flags, config)
    assert all(problem.startswith("--config (TENURE_SERVER_CONFIG) ") for problem in problems)
    assert "hunter2" not in " ".join(problems)


def test_a_mistyped_setting_of_the_file_is_named(flags: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("idle-timeut: 5\n")
    assert "'idle_timeut'" in refused(flags, tmp_path / "a.yaml")[0]


OUT_OF_RANGE: list[tuple[str, Any]] = [
    ("host", "example.org"),
    ("port", 65536),
    ("port", -1),
    ("identity", "Upper"),
    ("identity", "a" * 64),
    ("identity", "../etc"),
    ("unowned_period", 59.9),
    ("unowned_period", float("nan")),
    ("idle_timeout", -1),
    ("idle_timeout", float("inf")),
    ("shutdown_grace", 0),
    ("log_level", "LOUD"),
    ("home", "a\0b"),
    ("workspace_roots", ["/no/such/directory"]),
    ("nonce_file", "/no/such/file"),
]


@pytest.mark.parametrize(("setting", "value"), OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused_by_flag_and_variable(
    flags: dict[str, Any], setting: str, value: object
) -> None:
    problems = refused(flags | {setting: value})
    assert len(problems) == 1
    assert problems[0].startswith(f"{flag_of(setting)} ({variable_of(setting)}) ")


@pytest.mark.accept("S-001.8")
@pytest.mark.parametrize("limit", ["0", "-1", "10001", "many", "1.5"])
def test_a_retention_limit_out_of_range_is_refused(flags: dict[str, Any], limit: str) -> None:
    assert "from 1 to 10000" in refused(flags | {"retention_limit": limit})[0]


@pytest.mark.parametrize("limit", ["1", "10000"])
def test_the_ends_of_the_retention_range_are_in_it(flags: dict[str, Any], limit: str) -> None:
    assert load_settings(flags | {"retention_limit": limit}).retention_limit == int(limit)


@pytest.mark.parametrize("setting", sorted(ServerSettings.model_fields))
def test_no_refusal_quotes_what_it_refuses(flags: dict[str, Any], setting: str) -> None:
    problems = refused(flags | {setting: {"a": PASTED}, "port": PASTED})
    assert len(problems) == len({setting, "port"})
    assert "hunter2" not in str(problems)


def test_everything_that_is_wrong_is_said_at_once(flags: dict[str, Any]) -> None:
    assert len(refused(flags | {"port": "x", "idle_timeout": "x", "retention_limit": 0})) == 3


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3"])
def test_plain_http_is_for_loopback_only(flags: dict[str, Any], host: str, tmp_path: Path) -> None:
    assert "without TLS" in refused(flags | {"host": host})[0]
    encrypted = {"tls_cert": str(tmp_path / "crt"), "tls_key": str(tmp_path / "key")}
    assert load_settings(flags | {"host": host} | encrypted).encrypted


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "::1"])
def test_loopback_needs_no_certificate(flags: dict[str, Any], host: str) -> None:
    assert not load_settings(flags | {"host": host}).encrypted


def test_a_certificate_without_its_key_is_refused(flags: dict[str, Any]) -> None:
    assert refused(flags | {"tls_cert": "/a"})[0].startswith("--tls-key")
    assert refused(flags | {"tls_key": "/a"})[0].startswith("--tls-cert")


def test_a_home_keeps_its_text_but_for_what_makes_it_absolute(flags: dict[str, Any], tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    assert str(load_settings(flags | {"home": f"{tmp_path}/link/"}).home) == f"{tmp_path}/link"


@pytest.mark.accept("O-003.4")
def test_a_period_not_shorter_than_the_idle_timeout_becomes_half_of_it(flags: dict[str, Any]) -> None:
    settings = load_settings(flags | {"idle_timeout": "300", "unowned_period": "300"})
    assert settings.period.ms == 150_000
    assert len(settings.period.changes) == 1


@pytest.mark.accept("O-003.7")
def test_the_floor_of_the_period_wins_over_the_idle_timeout(flags: dict[str, Any]) -> None:
    assert load_settings(flags | {"idle_timeout": "10"}).period.ms == 60_000


@pytest.mark.accept("O-003.6")
def test_without_idle_reaping_the_period_stands(flags: dict[str, Any]) -> None:
    assert load_settings(flags | {"idle_timeout": "0", "unowned_period": "86400"}).period.ms == 86_400_000


def test_every_setting_says_what_it_is_and_what_it_may_be() -> None:
    for name, setting in ServerSettings.model_fields.items():
        assert setting.description, name
        assert Setting[name].value.startswith("must be")
        assert isinstance(default_of(name), str)
