"""The command line says what it can do, imports no more than it needs, and names the extra that is
missing."""

import json
import subprocess
import sys

import pytest
import yaml

from tenure import __version__
from tenure.cli.commands import COMMANDS


def tenure(*words: str, without: tuple[str, ...] = (), after: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, in which the modules ``without`` cannot be imported."""
    program = f"""
import sys
for name in {without!r}:
    sys.modules[name] = None
from tenure.cli.main import app
try:
    app({list(words)!r})
finally:
    {after or "pass"}
"""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)


def test_help_lists_every_command() -> None:
    done = tenure("--help")
    assert done.returncode == 0
    for name, command in COMMANDS.items():
        assert name in done.stdout
        assert command.summary in done.stdout


def test_the_version_is_the_packages() -> None:
    assert tenure("version").stdout.strip() == __version__


def test_a_word_that_is_no_command_is_refused() -> None:
    done = tenure("operate")
    assert done.returncode == 2
    assert "operator" in done.stderr


@pytest.mark.parametrize("words", [("crds",), ("rbac",), ("version",), ("--help",)])
def test_a_command_that_needs_no_cluster_imports_none(words: tuple[str, ...]) -> None:
    after = "print(sorted({'kopf', 'kubernetes', 'aiohttp', 'asyncpg'} & set(sys.modules)), file=sys.stderr)"
    done = tenure(*words, after=after)
    assert done.returncode == 0
    assert done.stderr.strip().splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("command", "module", "extra"),
    [("operator", "structlog", "operator"), ("crds", "yaml", "cli"), ("version", "typer", "cli")],
)
def test_a_missing_extra_is_named_without_a_traceback(command: str, module: str, extra: str) -> None:
    done = tenure(command, without=(module,))
    assert done.returncode == 1
    assert f"pip install 'tenure[{extra}]'" in done.stderr
    assert module in done.stderr
    assert "Traceback" not in done.stderr


def test_the_roles_come_as_yaml_or_json() -> None:
    as_yaml = list(yaml.safe_load_all(tenure("rbac").stdout))
    as_json = json.loads(tenure("rbac", "--format", "json").stdout)
    assert as_json["items"] == as_yaml
    assert [role["kind"] for role in as_yaml] == ["ClusterRole", "Role"]
    (role,) = yaml.safe_load_all(tenure("rbac", "--namespaced", "--lease-name", "mine").stdout)
    assert role["kind"] == "Role"
    assert ["mine"] in [rule.get("resourceNames") for rule in role["rules"]]
