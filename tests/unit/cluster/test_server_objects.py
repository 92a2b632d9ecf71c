"""What an answer about a control server's object is taken for, however odd it is."""

import base64
from typing import Any

import pytest

from tenure.cluster.calls import Companion, Resource, Verb
from tenure.cluster.errors import Conflict
from tenure.cluster.servers import KubernetesServerCluster
from tenure.model.masked import Masked

OURS = "6f1c"
Json = dict[str, Any]


class Answering:
    """Stands where the client is: one answer for each GET, and a note of what is written."""

    def __init__(self, answer: Json) -> None:
        self._answer = answer
        self.written: list[Verb] = []

    async def request(self, verb: Verb, resource: Resource, **named: Any) -> Json:
        if verb is not Verb.GET:
            self.written.append(verb)
        return self._answer


def adapter(answer: Json) -> tuple[KubernetesServerCluster, Answering]:
    client: Any = Answering(answer)
    return KubernetesServerCluster(client, instance="test"), client


def owner(uid: str = OURS, **fields: Any) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": True, **fields}


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


@pytest.mark.parametrize(
    ("references", "expected"),
    [
        (None, ""),
        ([], ""),
        ([owner()], OURS),
        ([owner(controller=False)], ""),
        ([owner("other", controller=None), owner()], OURS),
    ],
)
async def test_a_secrets_owner_is_the_one_that_controls_it(references: Any, expected: str) -> None:
    meta = {"name": "s", "uid": "u", "resourceVersion": "1", "ownerReferences": references}
    cluster, _ = adapter({"metadata": meta})
    found = await cluster.get_secret("team", "s")
    assert found is not None
    assert found.owner_uid == expected
    assert found.data == {}


@pytest.mark.parametrize("odd", [None, 5, "not base64!", encoded(b"\xff\xfe"), "YQ", "ä"])
async def test_what_is_no_text_is_left_out_and_the_rest_is_read(odd: Any) -> None:
    cluster, _ = adapter({"metadata": {}, "data": {"odd": odd, "port": encoded(b"8443")}})
    found = await cluster.get_secret("team", "s")
    assert found is not None
    assert found.data == {"port": Masked("8443")}
    assert (found.uid, found.resource_version, found.owner_uid) == ("", "", "")


async def test_a_companion_that_nobody_owns_is_not_ours() -> None:
    cluster, client = adapter({"metadata": {"name": "n", "labels": {"a": "b"}}, "spec": {}})
    wanted = {"metadata": {"name": "n", "ownerReferences": [owner()]}, "spec": {"minAvailable": 1}}
    with pytest.raises(Conflict):
        await cluster.ensure(Companion.DISRUPTION_BUDGET, "team", wanted)
    assert client.written == []


@pytest.mark.parametrize(
    ("labels", "ours"),
    [({"i": "main", "x": "y"}, True), ({"i": "other"}, False), ({}, False), (None, False)],
)
async def test_a_claim_without_owner_is_ours_by_all_its_labels(labels: Any, ours: bool) -> None:
    cluster, client = adapter({"metadata": {"name": "n", "labels": labels}, "spec": {}})
    wanted = {"metadata": {"name": "n", "labels": {"i": "main"}}, "spec": {"accessModes": []}}
    if ours:
        assert not await cluster.ensure(Companion.CLAIM, "team", wanted)
    else:
        with pytest.raises(Conflict):
            await cluster.ensure(Companion.CLAIM, "team", wanted)
    assert client.written == []
