"""The chart's admission policies and roles, asked of a real API server as the people whom they concern."""

import asyncio
import json
import uuid
from collections.abc import Iterator

import pytest
import yaml
from tests.cluster.control_plane import ControlPlane
from tests.integration.chart.helm import Helm, Object
from tests.integration.chart.test_lifecycle import agent
from tests.support.cluster import apply, kubectl
from tests.support.server_manifests import server_manifest
from tests.support.wait import eventually

DATABASES: Object = {
    "default": {"existingSecret": "one"},
    "red": {"existingSecret": "two", "namespaces": ["team-red"]},
    "blue": {"existingSecret": "three", "namespaces": ["team-blue", "team-red"]},
}


@pytest.fixture(scope="module", autouse=True)
def _release(helm: Helm, control_plane: ControlPlane, system_namespace: str) -> Iterator[None]:
    for team in ("team-red", "team-blue"):
        kubectl(control_plane, "create", "namespace", team)
    writes = ("create", "update", "patch", "get", "list")
    _role(control_plane, "agent-writer", "tenure.dev", "agentprocesses", *writes)
    _role(control_plane, "server-writer", "tenure.dev", "controlservers", *writes)
    _role(control_plane, "pod-maker", "", "pods", "create")
    with helm.installed({"databases": DATABASES}):
        asyncio.run(eventually(lambda: _judges(control_plane), within=30, what="both policies in force"))
        yield


def _role(plane: ControlPlane, name: str, group: str, resource: str, *verbs: str) -> None:
    rules = [{"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}}
    apply(plane, role | {"rules": rules})


def _judges(plane: ControlPlane) -> bool:
    """Whether the API server has picked the policies up: it does so a moment after they were made."""
    nobody = person(plane, "team-red", "agent-writer", "server-writer")
    tries: tuple[tuple[list[str], Object], ...] = (
        (["--as", nobody], agent("probe")),
        (["--as", nobody], server_manifest()),
        ([], table("probe", database="nowhere")),
    )
    for options, body in tries:
        try:
            kubectl(
                plane,
                "create",
                "--dry-run=server",
                *options,
                "-n",
                "team-red",
                "-f-",
                stdin=yaml.safe_dump(body),
            )
        except AssertionError as refusal:
            if "may not" not in str(refusal):
                raise
        else:
            return False
    return True


def person(plane: ControlPlane, namespace: str, *roles: str) -> str:
    """A new user with these ClusterRoles in one namespace."""
    name = f"user-{uuid.uuid4().hex[:8]}"
    for role in roles:
        kubectl(
            plane,
            "create",
            "rolebinding",
            f"{name}-{role}",
            "-n",
            namespace,
            f"--clusterrole={role}",
            f"--user={name}",
        )
    return name


def write(plane: ControlPlane, user: str, namespace: str, body: Object, verb: str = "create") -> str:
    text = yaml.safe_dump(body)
    return kubectl(plane, *verb.split(), "--as", user, "-n", namespace, "-f-", stdin=text)


def table(name: str, **liveness: str) -> Object:
    """An agent that reports to a table."""
    return agent(name, liveness=liveness)


def test_an_author_who_may_not_create_pods_may_not_have_the_operator_create_them(
    control_plane: ControlPlane,
) -> None:
    author = person(control_plane, "team-red", "agent-writer")
    with pytest.raises(AssertionError, match="you may not create pods in namespace team-red") as refusal:
        write(control_plane, author, "team-red", agent("a"))
    assert "ask for a role that allows it" in str(refusal.value)


def test_an_author_who_may_create_pods_may_write_an_agent(control_plane: ControlPlane) -> None:
    author = person(control_plane, "team-red", "agent-writer", "pod-maker")
    assert "created" in write(control_plane, author, "team-red", agent("b"))


def test_the_right_to_create_pods_elsewhere_does_not_count(control_plane: ControlPlane) -> None:
    author = person(control_plane, "team-red", "agent-writer")
    kubectl(
        control_plane,
        *(
            "create",
            "rolebinding",
            f"{author}-else",
            "-n",
            "team-blue",
            "--clusterrole=pod-maker",
            f"--user={author}",
        ),
    )
    with pytest.raises(AssertionError, match="may not create pods in namespace team-red"):
        write(control_plane, author, "team-red", agent("c"))


def test_a_change_of_spec_is_judged_and_a_change_of_labels_is_not(control_plane: ControlPlane) -> None:
    kubectl(control_plane, "create", "-n", "team-red", "-f-", stdin=yaml.safe_dump(agent("d")))
    editor = person(control_plane, "team-red", "agent-writer")
    patch = ("patch", "agentprocess", "d", "--as", editor, "-n", "team-red", "--type=merge", "-p")
    kubectl(control_plane, *patch, json.dumps({"metadata": {"labels": {"team": "red"}}}))
    with pytest.raises(AssertionError, match="may not create pods"):
        kubectl(control_plane, *patch, json.dumps({"spec": {"restartToken": "again"}}))


def _server(name: str, **spec: object) -> Object:
    return server_manifest(**spec) | {"metadata": {"name": name}}


@pytest.mark.accept("K-9")
def test_an_author_who_may_not_create_pods_may_not_have_the_operator_create_servers(
    control_plane: ControlPlane,
) -> None:
    author = person(control_plane, "team-red", "server-writer")
    with pytest.raises(AssertionError, match="a ControlServer makes pods, and you may not create pods in"):
        write(control_plane, author, "team-red", _server("a"))
    maker = person(control_plane, "team-red", "server-writer", "pod-maker")
    assert "created" in write(control_plane, maker, "team-red", _server("b"))
    patch = ("patch", "controlserver", "b", "--as", author, "-n", "team-red", "--type=merge", "-p")
    kubectl(control_plane, *patch, json.dumps({"metadata": {"labels": {"team": "red"}}}))
    with pytest.raises(AssertionError, match="may not create pods"):
        kubectl(control_plane, *patch, json.dumps({"spec": {"server": {"image": "chosen/by:me"}}}))


@pytest.mark.accept("S-005.4")
async def test_survival_is_refused_where_no_database_is_the_store_and_taken_where_one_is(
    control_plane: ControlPlane, helm: Helm
) -> None:
    author = person(control_plane, "team-red", "server-writer", "pod-maker")
    enabled = _server("survives", agentSurvival="Enabled")

    def answer() -> str:
        try:
            return write(control_plane, author, "team-red", enabled, "create --dry-run=server")
        except AssertionError as refusal:
            return str(refusal)

    assert "(no_durable_store)" in answer()
    assert "Set store: true on one" in answer()
    write(control_plane, author, "team-red", _server("plain", agentSurvival="Disabled"))
    blue = person(control_plane, "team-blue", "server-writer", "pod-maker")
    stored = DATABASES | {"red": DATABASES["red"] | {"store": True}}
    helm.install({"databases": stored})
    try:
        await eventually(lambda: "created" in answer(), within=20, every=0.5, what="survival is taken")
        write(control_plane, author, "team-red", enabled)
        with pytest.raises(AssertionError, match="no_durable_store"):
            write(control_plane, blue, "team-blue", enabled)
        everybodys = DATABASES | {"default": DATABASES["default"] | {"store": True}}
        helm.install({"databases": everybodys})

        def blues() -> str:
            try:
                return write(control_plane, blue, "team-blue", enabled, "create --dry-run=server")
            except AssertionError as refusal:
                return str(refusal)

        await eventually(lambda: "created" in blues(), within=20, every=0.5, what="taken everywhere")
    finally:
        helm.install({"databases": DATABASES})
        await eventually(lambda: "(no_durable_store)" in answer(), within=20, every=0.5, what="no store")
    # What was written when there was a store can still be labelled, switched off and deleted.
    patch = ("patch", "controlserver", "survives", "-n", "team-red", "--type=merge", "-p")
    kubectl(control_plane, *patch, json.dumps({"metadata": {"labels": {"team": "red"}}}))
    with pytest.raises(AssertionError, match="no_durable_store"):
        kubectl(control_plane, *patch, json.dumps({"spec": {"idleTimeoutSeconds": 60}}))
    kubectl(control_plane, *patch, json.dumps({"spec": {"agentSurvival": "Disabled"}}))


@pytest.mark.accept("K-9")
def test_a_namespace_may_not_name_a_database_of_another(control_plane: ControlPlane) -> None:
    author = person(control_plane, "team-blue", "agent-writer", "pod-maker")
    with pytest.raises(AssertionError, match='may not use a database named "red"') as refusal:
        write(control_plane, author, "team-blue", table("a", database="red"))
    assert "red, " not in str(refusal.value)
    assert any(f"it may use: {names}" in str(refusal.value) for names in ("blue, default", "default, blue"))


def test_a_namespace_may_name_the_databases_that_list_it(control_plane: ControlPlane) -> None:
    author = person(control_plane, "team-blue", "agent-writer", "pod-maker")
    write(control_plane, author, "team-blue", table("b"))
    write(control_plane, author, "team-blue", table("c", database="blue"))
    author = person(control_plane, "team-red", "agent-writer", "pod-maker")
    write(control_plane, author, "team-red", table("e", database="red"))


def test_a_database_that_is_not_set_up_is_refused_with_those_that_are(control_plane: ControlPlane) -> None:
    author = person(control_plane, "team-blue", "agent-writer", "pod-maker")
    with pytest.raises(AssertionError, match=r'named "nowhere"; it may use: (blue, default|default, blue)'):
        write(control_plane, author, "team-blue", table("f", database="nowhere"))


def test_an_agent_without_a_table_needs_no_database(control_plane: ControlPlane) -> None:
    author = person(control_plane, "team-blue", "agent-writer", "pod-maker")
    write(control_plane, author, "team-blue", table("g", mode="Pod", database="red"))


async def test_without_any_database_the_refusal_says_what_to_do(
    control_plane: ControlPlane, helm: Helm
) -> None:
    author = person(control_plane, "team-blue", "agent-writer", "pod-maker")

    def answer() -> str:
        try:
            return write(control_plane, author, "team-blue", table("h"), "create --dry-run=server")
        except AssertionError as refusal:
            return str(refusal)

    helm.install({})
    try:
        advice = "with spec.liveness.mode: Pod none is needed"
        await eventually(lambda: advice in answer(), within=20, every=0.5, what=advice)
    finally:
        helm.install({"databases": DATABASES})
        await eventually(lambda: _judges(control_plane), within=20, what="both policies in force")


async def test_a_second_install_judges_like_the_first(control_plane: ControlPlane, helm: Helm) -> None:
    helm.uninstall()
    # An API server forgets what a policy that is gone needed: longer than its look at the policies, once a second.
    await asyncio.sleep(3)
    helm.install({"databases": DATABASES})
    await eventually(lambda: _judges(control_plane), within=20, what="both policies in force")


@pytest.mark.accept("K-9")
@pytest.mark.parametrize("kind", ["agentprocesses", "controlservers"])
@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        ("view", {"get", "list", "watch"}),
        ("edit", {"get", "list", "watch", "create", "update", "patch", "delete"}),
        ("admin", {"get", "list", "watch", "create", "update", "patch", "delete"}),
    ],
)
def test_the_usual_roles_reach_objects_of_their_namespace_and_never_a_status(
    control_plane: ControlPlane, role: str, allowed: set[str], kind: str
) -> None:
    user = person(control_plane, "team-red", role)

    def may(verb: str, namespace: str, *subresource: str) -> bool:
        question = ("auth", "can-i", verb, f"{kind}.tenure.dev", *subresource)
        try:
            kubectl(control_plane, *question, "--as", user, "-n", namespace, "--quiet")
        except AssertionError:
            return False
        return True

    verbs = ("get", "list", "watch", "create", "update", "patch", "delete")
    assert {verb for verb in verbs if may(verb, "team-red")} == allowed
    assert not any(may(verb, "team-blue") for verb in verbs)
    assert not any(may(verb, "team-red", "--subresource=status") for verb in ("update", "patch"))
