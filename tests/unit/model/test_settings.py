"""Settings from the environment, and the directory of named databases."""

from pathlib import Path

import pytest

from tenure.model.errors import InvalidSettings
from tenure.model.settings import DatabaseConfig, LogLevel, load_databases, load_settings

URL = "postgresql://tenure:hunter2@db:5432/agents"


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("TENURE_") or name in ("POD_NAME", "POD_NAMESPACE"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("POD_NAMESPACE", "tenure-system")


def _database(directory: Path, name: str, **files: str) -> Path:
    folder = directory / name
    folder.mkdir(parents=True)
    for file, text in {"url": URL, **files}.items():
        (folder / file).write_text(text)
    return folder


def _problems(directory: Path) -> str:
    with pytest.raises(InvalidSettings) as refused:
        load_databases(directory)
    return str(refused.value)


def test_a_pod_needs_nothing_set_but_its_namespace() -> None:
    settings = load_settings()
    assert settings.namespaces == ()
    assert settings.databases_dir is None
    assert (settings.lease_namespace, settings.lease_name, settings.lease_seconds) == (
        "tenure-system",
        "tenure-operator",
        15,
    )
    assert (settings.http_port, settings.log_level, settings.poll_seconds) == (8080, LogLevel.INFO, 5)
    assert settings.pod_name


def test_every_variable_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {
        "TENURE_NAMESPACES": " b, a,,b ",
        "TENURE_DATABASES_DIR": str(tmp_path),
        "TENURE_LEASE_NAMESPACE": "elsewhere",
        "TENURE_LEASE_NAME": "team.tenure",
        "TENURE_LEASE_SECONDS": "30",
        "TENURE_HTTP_PORT": "0",
        "TENURE_LOG_LEVEL": "debug",
        "TENURE_POLL_SECONDS": "0.5",
        "POD_NAME": "tenure-0",
        "TENURE_POD_LABELS": "app.kubernetes.io/name=tenure, role=operator",
        "TENURE_SERVER_IMAGE": "registry.example/tenure:2",
    }.items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert settings.namespaces == ("a", "b")
    assert settings.databases_dir == tmp_path
    assert (settings.lease_namespace, settings.lease_name, settings.lease_seconds) == (
        "elsewhere",
        "team.tenure",
        30,
    )
    assert (settings.http_port, settings.log_level, settings.poll_seconds) == (0, LogLevel.DEBUG, 0.5)
    assert settings.pod_name == "tenure-0"
    assert settings.pod_namespace == "tenure-system"
    assert settings.pod_labels == {"app.kubernetes.io/name": "tenure", "role": "operator"}
    assert settings.server_image == "registry.example/tenure:2"


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "TENURE_NAMESPACES",
        "TENURE_LEASE_NAMESPACE",
        "TENURE_LEASE_SECONDS",
        "TENURE_DATABASES_DIR",
    ):
        monkeypatch.setenv(name, "")
    settings = load_settings()
    assert (settings.namespaces, settings.lease_namespace, settings.lease_seconds) == (
        (),
        "tenure-system",
        15,
    )


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("TENURE_NAMESPACES", "a,B", "TENURE_NAMESPACES must be names of namespaces separated by commas"),
        ("TENURE_NAMESPACES", "a b", "TENURE_NAMESPACES must be names of namespaces separated by commas"),
        ("TENURE_NAMESPACES", "n" * 64, "at most 63 each"),
        ("TENURE_LEASE_NAMESPACE", "Not One", "TENURE_LEASE_NAMESPACE must be the name of a namespace"),
        ("TENURE_LEASE_NAME", "a/b", "TENURE_LEASE_NAME must be the name of a Lease"),
        ("TENURE_LEASE_SECONDS", "2", "TENURE_LEASE_SECONDS must be a whole number from 3 to 300 (seconds)"),
        (
            "TENURE_LEASE_SECONDS",
            "15s",
            "TENURE_LEASE_SECONDS must be a whole number from 3 to 300 (seconds)",
        ),
        ("TENURE_HTTP_PORT", "65536", "TENURE_HTTP_PORT must be a port from 1 to 65535"),
        ("TENURE_LOG_LEVEL", "LOUD", "TENURE_LOG_LEVEL must be one of DEBUG, INFO, WARNING, ERROR"),
        ("TENURE_POLL_SECONDS", "0", "TENURE_POLL_SECONDS must be a number from 0.1 to 60 (seconds)"),
        ("TENURE_POLL_SECONDS", "nan", "TENURE_POLL_SECONDS must be a number from 0.1 to 60 (seconds)"),
        ("POD_NAME", "p" * 254, "POD_NAME must be a name with 1 to 253 characters"),
        ("TENURE_POD_LABELS", "a=b,c", "TENURE_POD_LABELS must be labels separated by commas"),
        ("TENURE_SERVER_IMAGE", "two images", "TENURE_SERVER_IMAGE must be the name of an image"),
    ],
)
def test_a_wrong_variable_is_refused_with_what_is_allowed(
    name: str, value: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidSettings) as refused:
        load_settings()
    assert sentence in str(refused.value)
    assert len(refused.value.problems) == 1


def test_every_wrong_variable_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_HTTP_PORT", "http")
    monkeypatch.setenv("TENURE_LOG_LEVEL", "LOUD")
    monkeypatch.delenv("POD_NAMESPACE")
    with pytest.raises(InvalidSettings) as refused:
        load_settings()
    assert [problem.split()[0] for problem in refused.value.problems] == [
        "TENURE_LEASE_NAMESPACE",
        "TENURE_HTTP_PORT",
        "TENURE_LOG_LEVEL",
    ]


@pytest.mark.accept("M-2")
def test_a_secret_in_the_wrong_variable_is_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "TENURE_NAMESPACES",
        "TENURE_LEASE_NAME",
        "TENURE_HTTP_PORT",
        "TENURE_LOG_LEVEL",
        "TENURE_LEASE_SECONDS",
    ):
        monkeypatch.setenv(name, URL)
    with pytest.raises(InvalidSettings) as refused:
        load_settings()
    assert "hunter2" not in str(refused.value)
    assert refused.value.__context__ is None


def test_without_a_directory_there_is_no_database(tmp_path: Path) -> None:
    assert load_databases(None) == ()
    assert load_databases(tmp_path) == ()


def test_a_directory_that_is_missing_is_said() -> None:
    with pytest.raises(InvalidSettings, match="TENURE_DATABASES_DIR must be the path of a directory"):
        load_databases(Path("/nowhere/at/all"))


def test_databases_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    _database(tmp_path, "default", store="", namespaces="*\n")
    _database(tmp_path, "archive", url=URL + "\n", namespaces="b, a\nc")
    _database(tmp_path, "open")
    archive, default, free = load_databases(tmp_path)
    assert (archive.name, archive.namespaces, archive.store) == ("archive", frozenset("abc"), False)
    assert (default.name, default.namespaces, default.store) == ("default", None, True)
    assert (free.name, free.namespaces, free.store) == ("open", None, False)
    assert archive.url.reveal() == URL


def test_a_database_is_for_the_namespaces_that_it_names(tmp_path: Path) -> None:
    _database(tmp_path, "archive", namespaces="a,b")
    _database(tmp_path, "open")
    archive, free = load_databases(tmp_path)
    assert archive.allows("a")
    assert not archive.allows("c")
    assert free.allows("c")


def test_a_mounted_secret_is_read_through_its_links(tmp_path: Path) -> None:
    """A kubelet writes a volume as ..<time>/, ..data -> ..<time>, name -> ..data/name."""
    written = tmp_path / "..2026_11_30"
    _database(written, "default")
    (tmp_path / "..data").symlink_to(written.name)
    (tmp_path / "default").symlink_to("..data/default")
    assert [database.name for database in load_databases(tmp_path)] == ["default"]


@pytest.mark.parametrize(
    "url",
    [
        "postgres://db/agents",
        "postgresql://a:1,b:2/agents?target_session_attrs=primary",
        "postgresql:///agents?host=/run",
    ],
)
def test_whatever_a_driver_may_take_is_taken(url: str, tmp_path: Path) -> None:
    _database(tmp_path, "default", url=url)
    assert load_databases(tmp_path)[0].url.reveal() == url


@pytest.mark.accept("M-2")
@pytest.mark.parametrize(
    "url",
    [
        "",
        "hunter2",
        "mysql://a:hunter2@db/agents",
        "postgresql://",
        f"{URL}\n{URL}",
        f"{URL} x",
        f"{URL}\0",
        URL * 200,
    ],
)
def test_what_is_no_url_is_refused_without_being_shown(url: str, tmp_path: Path) -> None:
    _database(tmp_path, "default", url=url)
    said = _problems(tmp_path)
    assert (
        said == "database 'default': its url must be one line, postgresql://user:password@host:port/database"
    )


@pytest.mark.accept("M-2")
def test_a_database_shows_its_name_and_not_its_url(tmp_path: Path) -> None:
    _database(tmp_path, "default")
    (database,) = load_databases(tmp_path)
    assert "hunter2" not in f"{database} {database!r}"
    assert isinstance(database, DatabaseConfig)


def test_a_database_without_a_url_is_said_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "default").mkdir()
    assert (
        _problems(tmp_path)
        == f"database 'default': the file {tmp_path}/default/url is missing or cannot be read"
    )


def test_a_url_that_is_no_text_is_said_with_the_file(tmp_path: Path) -> None:
    (_database(tmp_path, "default") / "url").write_bytes(b"\xff\xfe")
    assert "is missing or cannot be read" in _problems(tmp_path)


@pytest.mark.parametrize("text", ["", " \n", "Not-One", "a,*", "a b"])
def test_namespaces_that_are_none_are_refused(text: str, tmp_path: Path) -> None:
    """An empty file could mean nobody or everybody: neither is guessed."""
    _database(tmp_path, "default", namespaces=text)
    assert "must hold names of namespaces separated by commas, or * for all of them" in _problems(tmp_path)


def test_two_stores_are_one_too_many(tmp_path: Path) -> None:
    _database(tmp_path, "a", store="")
    _database(tmp_path, "b", store="true")
    assert _problems(tmp_path) == "only one database can be the store, and these are marked so: a, b"


def test_all_databases_that_are_wrong_are_said_at_once(tmp_path: Path) -> None:
    _database(tmp_path, "a", url="x")
    _database(tmp_path, "B")
    said = _problems(tmp_path)
    assert "database 'a': its url" in said
    assert "database 'B': its name must be made of lower case letters" in said


def test_files_beside_the_databases_are_passed_over(tmp_path: Path) -> None:
    _database(tmp_path, "default")
    (tmp_path / "README").write_text("one directory for each database")
    assert [database.name for database in load_databases(tmp_path)] == ["default"]
