"""Canaries in every place where a secret may be, and a scan of every place where none may come out."""

import json
import signal
from pathlib import Path

import pytest
from tests.integration.agents.world import CRASHES_WHEN_TOLD, OBEDIENT, SECRET, World, all_of, shell
from tests.support.api import path
from tests.support.operator import database, operator_process

IN_THE_URL, IN_THE_TEMPLATE, IN_A_SECRET, IN_THE_ARGS = (
    f"canary-{word}-7f3a9c51" for word in ("password", "environment", "secretkey", "argument")
)


@pytest.mark.accept("M-2")
async def test_no_canary_comes_out_anywhere(frail_world: World, tmp_path: Path) -> None:
    world = frail_world
    name = world.url.rsplit("/", 1)[1]
    await world.sql(f"CREATE ROLE tenure_canary LOGIN SUPERUSER PASSWORD '{IN_THE_URL}'")
    url = world.server.url(name, user="tenure_canary", password=IN_THE_URL)
    wrong = world.server.url(name, user="tenure_canary", password=f"{IN_THE_URL}-wrong")
    await world.api.create(
        path("secrets", world.namespace),
        {"metadata": {"name": "keys"}, "stringData": {"provider": IN_A_SECRET}},
    )
    template = world.manifest("secretive", shell(CRASHES_WHEN_TOLD + f" # {IN_THE_ARGS}"))["spec"]["template"]
    template["spec"]["containers"][0]["env"] += [
        {"name": "PROVIDER_KEY", "value": IN_THE_TEMPLATE},
        {"name": "OTHER_KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "provider"}}},
    ]
    refused = json.loads(json.dumps(template))
    refused["spec"]["containers"][0] |= {"imagePullPolicy": "Sometimes", "workingDirectory": IN_THE_TEMPLATE}
    databases = [database(url), database(wrong, "wrong", store=False)]
    async with operator_process(
        world.plane,
        tmp_path,
        databases=databases,
        namespaces=[world.namespace],
        environment={"TENURE_LOG_LEVEL": "DEBUG"},
    ) as operator:
        await all_of(
            world.create("secretive", template=template, liveness=world.liveness()),
            world.create("refused", template=refused, liveness={"mode": "Pod"}),
            world.create("locked-out", shell(OBEDIENT), liveness=world.liveness(database="wrong")),
        )
        pod = await world.pod_running("secretive")
        await world.insert_row(pod["metadata"]["uid"], process_kind="secretive", liveness_interval_s=600.0)
        await world.phase("secretive", "Running")
        await world.condition("refused", "Stalled", "True")
        await world.condition("locked-out", "Alive", "Unknown", "DatabaseUnavailable")
        # Whatever goes wrong is told: a crash, an outage, a stop in it, and its end.
        world.kubelet.kill(world.namespace, pod["metadata"]["name"], number=signal.SIGUSR1)
        second = await world.next_instance("secretive", pod["metadata"]["uid"], phase="Starting")
        await world.pod_running("secretive")
        world.server.stop()
        await world.phase("secretive", "Unknown")
        await world.stop("secretive")
        await world.stopped("secretive", second)
        world.server.start()
        await world.until("secretive", lambda s: s["stops"][-1].get("recorded"), within=20)
        pages = [(await operator.page(name))[1] for name in ("metrics", "healthz", "readyz")]
        events = await world.api.get(f"/apis/events.k8s.io/v1/namespaces/{world.namespace}/events")
        assert {"TemplateRejected", "Stopped"} <= {e["reason"] for e in events["items"]}
        assert await operator.terminate() == 0
        log = operator.log()
    assert log.count("\n") > 10
    rows = {
        table.rpartition(".")[2]: [dict(row) for row in await world.sql(f"SELECT * FROM {table}")]
        for table in ("tenure.agent_stops", "cks_agent_liveness")
    }
    assert {"agent_stops", "cks_agent_liveness"} == {table for table, found in rows.items() if found}
    shown = {
        "log": log,
        "pages": "\n".join(pages),
        "events": json.dumps(events),
        "status": json.dumps(
            [
                i.get("status")
                for n in ("secretive", "refused", "locked-out")
                for i in world.history.versions(n)
            ]
        ),
        "annotations": json.dumps([s.item["metadata"].get("annotations") for s in world.history.seen]),
        "rows": json.dumps(rows, default=str),
    }
    for place, text in shown.items():
        for canary in (IN_THE_URL, IN_THE_TEMPLATE, IN_A_SECRET, IN_THE_ARGS, world.server.password):
            assert canary not in text, f"{canary} is in the {place}"
    for line in log.splitlines():
        json.loads(line)
    assert SECRET not in shown["rows"]
