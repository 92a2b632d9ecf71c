"""What a real API server makes of ControlServers, beside the table."""

from typing import Any

import pytest
from tests.integration.crds.refusing import refusal
from tests.support.agent_manifests import Manifest
from tests.support.api import AdminClient, ApiError, path
from tests.support.server_manifests import server_manifest

PLACE = path("controlservers", "default")
WINDOWS = {"template": {"spec": {"os": {"name": "windows"}}}}


@pytest.mark.accept("S-005.2")
async def test_the_least_manifest_gets_the_documented_defaults_with_survival_off(api: AdminClient) -> None:
    made = await api.create(PLACE, server_manifest(), dryRun="All", fieldValidation="Strict")
    assert made["spec"] == {
        "agentSurvival": "Disabled",
        "server": {},
        "storage": {},
        "recovery": {"deadlineSeconds": 30, "readTimeoutMilliseconds": 2000, "readRetries": 2},
        "unownedPeriodSeconds": 600,
        "idleTimeoutSeconds": 3600,
        "detachedEventLimit": 100,
    }


async def test_backends_and_profiles_get_theirs(api: AdminClient) -> None:
    raw = server_manifest(
        backend={"selector": {"matchLabels": {"app": "backend"}}},
        agentProfiles=[{"name": "echo", "command": ["echo"]}],
    )
    made = await api.create(PLACE, raw, dryRun="All", fieldValidation="Strict")
    assert made["spec"]["backend"]["handover"] == "OnReady"
    (profile,) = made["spec"]["agentProfiles"]
    assert profile == {"name": "echo", "command": ["echo"], "history": "Load", "permissions": "Deny"}


async def test_what_is_carried_verbatim_is_stored_word_for_word(api: AdminClient) -> None:
    server = {
        "resources": {"limits": {"cpu": 1.5, "memory": "2Gi"}, "fieldOfTomorrow": [1]},
        "template": {
            "metadata": {"labels": {"a": "b"}},
            "spec": {
                "containers": [{"name": "server", "volumeMounts": [{"name": "x", "mountPath": "/x"}]}],
                "volumes": [{"name": "x", "emptyDir": {}}],
                "os": {"name": "linux", "flavour": "any"},
                "anotherOfTomorrow": {"deep": {"deeper": None, "number": 1}},
            },
        },
    }
    storage = {
        "volumeClaimTemplate": {"spec": {"resources": {"requests": {"storage": "1Gi"}}, "newer": True}}
    }
    raw = server_manifest(server=server, storage=storage)
    made = await api.create(PLACE, raw, dryRun="All", fieldValidation="Strict")
    assert (made["spec"]["server"], made["spec"]["storage"]) == (server, storage)


async def _made(api: AdminClient, namespace: str, **spec: Any) -> str:
    made = await api.create(path("controlservers", namespace), server_manifest(**spec))
    return path("controlservers", namespace, made["metadata"]["name"])


@pytest.mark.parametrize(
    ("before", "after"),
    [({"installationID": "one"}, "two"), ({"installationID": "one"}, None), ({}, "one")],
    ids=["changed", "cleared", "set later"],
)
async def test_the_id_of_an_installation_stays_as_it_is(
    before: Manifest, after: str | None, api: AdminClient, namespace: str
) -> None:
    one = await _made(api, namespace, **before)
    with pytest.raises(ApiError, match=r"spec.installationID: Invalid value.*must stay as it is") as refused:
        await api.patch(one, {"spec": {"installationID": after}})
    assert refused.value.status == 422


@pytest.mark.parametrize("before", [{"installationID": "one"}, {}], ids=["given", "left out"])
async def test_everything_but_the_id_may_change_later(
    before: Manifest, api: AdminClient, namespace: str
) -> None:
    one = await _made(api, namespace, **before)
    change = {
        "agentSurvival": "Enabled",
        "backend": {"selector": {"matchLabels": {"app": "backend"}}},
        "server": {"image": "server:2"},
        "storage": {"volumeClaimTemplate": {"spec": {}}},
        "recovery": {"deadlineSeconds": 60},
        "unownedPeriodSeconds": 60,
    }
    after = await api.patch(one, {"spec": change}, fieldValidation="Strict")
    assert after["spec"]["agentSurvival"] == "Enabled"


@pytest.mark.accept("S-005.4")
async def test_survival_is_refused_where_it_is_unavailable_whichever_of_the_two_comes_last(
    api: AdminClient, namespace: str
) -> None:
    for before, after in (
        ({"server": WINDOWS}, {"agentSurvival": "Enabled"}),
        ({"agentSurvival": "Enabled"}, {"server": WINDOWS}),
    ):
        one = await _made(api, namespace, **before)
        with pytest.raises(ApiError, match=r"spec.agentSurvival: Forbidden: .*platform_windows") as refused:
            await api.patch(one, {"spec": after})
        assert refused.value.status == 422
        await api.delete(one)


async def test_a_deadline_is_shortened_together_with_its_reads(api: AdminClient, namespace: str) -> None:
    one = await _made(api, namespace)
    with pytest.raises(ApiError, match="2000, 2 and 30 when left out"):
        await api.patch(one, {"spec": {"recovery": {"deadlineSeconds": 10}}})
    short = {"deadlineSeconds": 10, "readTimeoutMilliseconds": 500}
    after = await api.patch(one, {"spec": {"recovery": short}})
    assert after["spec"]["recovery"] == {**short, "readRetries": 2}


async def test_storage_may_be_replaced_by_who_had_said_nothing_about_it(
    api: AdminClient, namespace: str
) -> None:
    one = await _made(api, namespace)
    after = await api.patch(one, {"spec": {"storage": {"volumeClaimTemplate": {"spec": {}}}}})
    assert after["spec"]["storage"] == {"volumeClaimTemplate": {"spec": {}}}


async def test_several_mistakes_are_told_at_once(api: AdminClient) -> None:
    wrong = server_manifest(
        unownedPeriodSeconds=1, detachedEventLimit=0, server={"template": {"spec": {"hostname": "a"}}}
    )
    refused = await refusal(api, PLACE, wrong)
    for sentence in ("60 to 2592000 seconds", "1 to 10000 events", "hostname must be left out"):
        assert sentence in refused.message
