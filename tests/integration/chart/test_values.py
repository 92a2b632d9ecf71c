"""What the chart takes and what it refuses, and whether the refusal helps."""

import pytest
from tests.integration.chart.helm import CHART, OLDEST, Helm, HelmRefused, Object

DATABASE = {"existingSecret": "tenure-database"}

REFUSED: list[tuple[str, Object, str]] = [
    ("a misspelt value", {"replcas": 3}, "'replcas' not allowed"),
    ("a value at the wrong depth", {"logLevel": "DEBUG"}, "'logLevel' not allowed"),
    ("a misspelt value within a group", {"operator": {"loglevel": "DEBUG"}}, "'loglevel' not allowed"),
    ("a misspelt field of a database", {"databases": {"default": DATABASE | {"sotre": True}}}, "'sotre'"),
    ("a literal URL of a database", {"databases": {"default": {"url": "postgresql://u:p@h/d"}}}, "url"),
    ("a database without its Secret", {"databases": {"default": {"store": True}}}, "existingSecret"),
    ("a database name that no label takes", {"databases": {"My_Database": DATABASE}}, "My_Database"),
    (
        "names of namespaces next to the star",
        {"databases": {"default": DATABASE | {"namespaces": ["*", "team-a"]}}},
        "/databases/default/namespaces",
    ),
    (
        "nobody allowed to use a database",
        {"databases": {"default": DATABASE | {"namespaces": []}}},
        "namespaces",
    ),
    ("a namespace that cannot exist", {"watchNamespaces": ["Team_A"]}, "/watchNamespaces/0"),
    ("a word for a switch", {"admission": {"enabled": "yes"}}, "'auto', true, false"),
    ("an unknown log level", {"operator": {"logLevel": "LOUD"}}, "'DEBUG', 'INFO', 'WARNING', 'ERROR'"),
    ("a Lease too short to hold", {"operator": {"leaseSeconds": 1}}, "/operator/leaseSeconds"),
    ("no replica", {"replicas": 0}, "/replicas"),
    ("a misspelt field of the trial database", {"trialPostgresql": {"enable": True}}, "'enable' not allowed"),
    ("two words for an image", {"serverImage": "tenure two"}, "/serverImage"),
    ("an unknown field of an image", {"image": {"name": "tenure"}}, "'name' not allowed"),
    (
        "two stores",
        {"databases": {"one": DATABASE | {"store": True}, "two": DATABASE | {"store": True}}},
        "only one database can be the store, and these say they are: one, two",
    ),
    (
        "two databases named default",
        {"databases": {"default": DATABASE}, "trialPostgresql": {"enabled": True}},
        'provides the database named "default" itself',
    ),
    (
        "credentials for a migration of nothing",
        {"migrate": {"existingSecret": "ddl"}, "databases": {"default": DATABASE}},
        "no database has store: true",
    ),
]

ACCEPTED: list[tuple[str, Object]] = [
    ("nothing", {}),
    ("a parent chart's globals", {"global": {"anything": 1}}),
    ("named namespaces", {"watchNamespaces": ["team-a", "team-b"]}),
    ("a database with its namespaces", {"databases": {"default": DATABASE | {"namespaces": ["team-a"]}}}),
    (
        "several databases, one of them the store",
        {"databases": {"default": DATABASE | {"store": True}, "other": DATABASE | {"key": "dsn"}}},
    ),
    (
        "the trial database next to another",
        {"databases": {"other": DATABASE}, "trialPostgresql": {"enabled": True}},
    ),
    ("part of a second", {"operator": {"pollSeconds": 0.5}}),
    ("switches by force", {"admission": {"enabled": False}, "rbac": {"aggregateToDefaultRoles": True}}),
    ("an image of the servers' own", {"serverImage": "registry.example/agents:7"}),
    ("an image by digest", {"image": {"digest": "sha256:" + "0" * 64}}),
    ("a share of the pods for a drain", {"podDisruptionBudget": {"maxUnavailable": "50%"}}),
]


@pytest.mark.parametrize(
    ("values", "word"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_a_wrong_value_is_refused_by_a_sentence_that_names_it(
    offline_helm: Helm, values: Object, word: str
) -> None:
    with pytest.raises(HelmRefused) as refusal:
        offline_helm.render(values)
    assert word in str(refusal.value)


@pytest.mark.parametrize("values", [case[1] for case in ACCEPTED], ids=[case[0] for case in ACCEPTED])
def test_a_right_value_is_taken(offline_helm: Helm, values: Object) -> None:
    assert offline_helm.render(values)


def test_helm_lint_finds_nothing(offline_helm: Helm) -> None:
    assert "0 chart(s) failed" in offline_helm("lint", "--strict", CHART, "--kube-version", OLDEST)


def test_an_older_kubernetes_is_refused(offline_helm: Helm) -> None:
    with pytest.raises(HelmRefused, match="requires kubeVersion: >=1"):
        offline_helm("template", CHART, "--kube-version", "1.31.9")
