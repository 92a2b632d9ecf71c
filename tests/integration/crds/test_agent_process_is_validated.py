"""What a real API server makes of AgentProcesses, beside the table."""

from collections.abc import Callable

import pytest
from tests.integration.crds.refusing import refusal
from tests.support.agent_manifests import Manifest, changed, hosted, manifest
from tests.support.api import AdminClient, ApiError, path

PLACE = path("agentprocesses", "default")


async def test_the_least_manifest_gets_the_documented_defaults(api: AdminClient) -> None:
    made = await api.create(PLACE, manifest(), dryRun="All", fieldValidation="Strict")
    assert made["spec"] == {
        "desiredState": "Running",
        "restartToken": "",
        "onExternalStop": "Stay",
        "restartPolicy": "OnFailure",
        "backoff": {"initialSeconds": 10, "maxSeconds": 300},
        "drain": {"gracePeriodSeconds": 600},
        "hung": {"policy": "Report", "afterIntervals": 3},
        "liveness": {"mode": "Table", "database": "default", "intervalSeconds": 30},
        "eviction": "ProtectWhileBusy",
        "template": {"spec": {"containers": [{"name": "agent", "image": "agent:1"}]}},
    }


async def test_a_template_is_stored_word_for_word(api: AdminClient) -> None:
    template = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {
            "containers": [
                {
                    "name": "agent",
                    "image": "agent:1",
                    "resources": {"limits": {"cpu": 1}},
                    "fieldOfTomorrow": [1.5],
                }
            ],
            "initContainers": [{"name": "first", "image": "first:1"}],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
            "anotherOfTomorrow": {"deep": {"deeper": None, "number": 1}},
        },
    }
    made = await api.create(PLACE, manifest(template=template), dryRun="All", fieldValidation="Strict")
    assert made["spec"]["template"] == template


async def test_a_field_may_be_taken_back_to_its_default(api: AdminClient, namespace: str) -> None:
    url = path("agentprocesses", namespace)
    made = await api.create(url, manifest(drain={"gracePeriodSeconds": 5}, stuckTaskSeconds=9))
    one = path("agentprocesses", namespace, made["metadata"]["name"])
    back = await api.patch(one, {"spec": {"drain": None, "stuckTaskSeconds": None}})
    assert back["spec"]["drain"] == {"gracePeriodSeconds": 600}
    assert "stuckTaskSeconds" not in back["spec"]


async def test_several_mistakes_are_told_at_once(api: AdminClient) -> None:
    wrong = changed(changed(manifest(), "spec.hung.afterIntervals", 1), "spec.template.spec.hostname", "me")
    refused = await refusal(api, PLACE, wrong)
    assert "3 to 1000 liveness intervals" in refused.message
    assert "hostname must be left out" in refused.message


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("prompt", "something else"),
        ("prompt", None),
        ("sessionID", "s-2"),
        ("controlServerRef", {"name": "other"}),
        ("workspaceSourceRoots", ["/"]),
    ],
)
async def test_a_session_stays_as_it_is(place: str, value: object, api: AdminClient, namespace: str) -> None:
    made = await api.create(path("agentprocesses", namespace), hosted(prompt="go on"))
    one = path("agentprocesses", namespace, made["metadata"]["name"])
    with pytest.raises(
        ApiError, match=r"spec\.session: Invalid value.*session must stay as it is"
    ) as refused:
        await api.patch(one, {"spec": {"session": {place: value}}})
    assert refused.value.status == 422
    after = await api.patch(one, {"spec": {"desiredState": "StopRequested", "restartToken": "again"}})
    assert after["spec"]["session"] == made["spec"]["session"]


@pytest.mark.parametrize("first", [hosted, manifest], ids=["hosted", "with a pod"])
async def test_an_agent_is_hosted_for_all_its_life_or_never(
    first: Callable[[], Manifest], api: AdminClient, namespace: str
) -> None:
    made = await api.create(path("agentprocesses", namespace), first())
    one = path("agentprocesses", namespace, made["metadata"]["name"])
    other = (
        hosted()["spec"] | {"template": None} if first is manifest else manifest()["spec"] | {"session": None}
    )
    with pytest.raises(ApiError, match="cannot be given or taken away later"):
        await api.patch(one, {"spec": other})
