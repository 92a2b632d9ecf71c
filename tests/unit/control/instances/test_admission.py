"""What an instance may be made of."""

import json
from pathlib import Path
from typing import Any

import pytest

from tenure.control.instances import CreateRefused, HostingConfig, Instances
from tenure.control.instances.admission import Admitted, examine
from tenure.model.masked import Masked
from tenure.protocol.messages import CreateRequest, InstancesWithEnvironment
from tenure.protocol.wire import HUGE


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path.resolve() / "root"
    (root / "work").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    return root


def request(root: Path, **fields: Any) -> CreateRequest:
    given = {"workspace_path": str(root / "work"), "agent_command": "agent --acp", **fields}
    return CreateRequest.model_validate_json(json.dumps(given))


def admitted(root: Path, **fields: Any) -> Admitted:
    return examine(request(root, **fields), HostingConfig((root,)), {})


def refused(root: Path, **fields: Any) -> str:
    with pytest.raises(CreateRefused) as error:
        admitted(root, **fields)
    assert error.value.status == 400
    return error.value.error


def test_a_command_is_split_as_a_shell_would_and_no_shell_is_run(root: Path) -> None:
    launch = admitted(root, agent_command="agent 'two words' --flag=\"x y\" $HOME; true").launch
    assert launch.argv == ("agent", "two words", "--flag=x y", "$HOME;", "true")


@pytest.mark.parametrize("command", ["", "   ", "''", "agent 'unfinished", "# a comment\\"])
def test_a_command_that_is_none_is_refused(root: Path, command: str) -> None:
    assert "agent_command has to be" in refused(root, agent_command=command)


def test_only_acp_is_spoken(root: Path) -> None:
    assert 'protocol has to be "acp"' in refused(root, protocol="mcp")


def test_paths_become_canonical_and_links_inside_are_followed(root: Path) -> None:
    (root / "link").symlink_to("work")
    launch = admitted(root, workspace_path=f"{root}/link/../link/.").launch
    assert launch.cwd == root / "work"
    assert launch.roots == (root / "work",)


def test_a_root_itself_is_permitted(root: Path) -> None:
    assert admitted(root, workspace_path=str(root)).launch.cwd == root


@pytest.mark.parametrize(
    "path",
    ["work", "./work", "{root}/missing", "{root}/file", "{root}/out", "{root}/../outside", "/", "{root}/loop",
     "{root}/work/../../outside", "{root}x", "\ud800"],
)  # fmt: skip
@pytest.mark.parametrize("what", ["workspace_path", "workspace_source_roots"])
def test_a_path_that_is_relative_missing_no_directory_or_outside_is_refused_with_what_is_allowed(
    root: Path, path: str, what: str
) -> None:
    (root / "file").touch()
    (root / "out").symlink_to(root.parent / "outside")
    (root / "loop").symlink_to("loop")
    (root.parent / "rootx").mkdir()
    given = path.format(root=root)
    value: object = [str(root / "work"), given] if what == "workspace_source_roots" else given
    sentence = refused_value(root, what, value)
    assert sentence.startswith(f"{what} has to be an absolute path of an existing directory")
    assert str(root) in sentence


def refused_value(root: Path, what: str, value: object) -> str:
    made = request(root).model_copy(update={what: tuple(value) if isinstance(value, list) else value})
    with pytest.raises(CreateRefused) as error:
        examine(made, HostingConfig((root,)), {})
    assert error.value.status == 400
    return error.value.error


def test_nothing_is_permitted_without_a_root(root: Path) -> None:
    with pytest.raises(CreateRefused, match="none is configured"):
        examine(request(root), HostingConfig(()), {})


def test_source_roots_are_what_was_asked_and_no_more(root: Path) -> None:
    (root / "sources").mkdir()
    launch = admitted(root, workspace_source_roots=[str(root / "sources")]).launch
    assert launch.roots == (root / "work", root / "sources")


def test_the_environment_is_the_server_s_without_its_secrets_and_with_what_was_asked(root: Path) -> None:
    config = HostingConfig((root,), scrub=frozenset({"TENURE_NONCE"}))
    asked = request(root, env={"A": "new", "B": "b"})
    env = examine(asked, config, {"A": "old", "PATH": "/bin", "TENURE_NONCE": "secret"}).launch.env
    assert env == {"A": "new", "B": "b", "PATH": "/bin"}


@pytest.mark.accept("S-001.8")
@pytest.mark.parametrize("limit", [0, 10_001])
def test_a_retention_limit_out_of_range_is_no_configuration(root: Path, limit: int) -> None:
    with pytest.raises(ValueError, match="from 1 to 10,000"):
        HostingConfig((root,), retention_limit=limit)


def test_the_environment_is_in_no_representation(root: Path) -> None:
    assert "canary-7" not in repr(admitted(root, env={"KEY": "canary-7"}))


async def test_an_enumeration_that_nobody_could_read_is_refused_before_it_exists(root: Path) -> None:
    instances = Instances(HostingConfig((root,)), port=lambda: 1)
    big = {f"V{n}": "x" * 1_000_000 for n in range(4)}
    with pytest.raises(CreateRefused) as error:
        for _ in range(20):
            instances.admit(request(root).model_copy(update={"env": masked(big)}))
    assert (error.value.status, error.value.error) == (409, "server_full")
    assert len(InstancesWithEnvironment(instances=instances.enumerate()).to_wire()) <= HUGE


def masked(env: dict[str, str]) -> dict[str, Any]:
    return {name: Masked(value) for name, value in env.items()}
