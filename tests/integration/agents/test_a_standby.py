"""A second operator on the same scope: it waits, and touches nothing but the Lease that it reads."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.integration.agents.world import OBEDIENT, World, shell
from tests.support.api import Object
from tests.support.cluster import apply, kubectl
from tests.support.operator import database, operator_process
from tests.support.wait import eventually

LEASE = "shared"


def reader_of_the_lease(world: World) -> Path:
    """A kubeconfig of somebody who may read that one Lease and nothing else."""
    group = "rbac.authorization.k8s.io"
    rule = {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": [LEASE],
        "verbs": ["get"],
    }
    objects: list[Object] = [
        {"apiVersion": "v1", "kind": "ServiceAccount"},
        {"apiVersion": f"{group}/v1", "kind": "Role", "rules": [rule]},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "standby"},
            "subjects": [{"kind": "ServiceAccount", "name": "standby", "namespace": world.namespace}],
        },
    ]
    apply(
        world.plane,
        *({**item, "metadata": {"name": "standby"}} for item in objects),
        namespace=world.namespace,
    )
    token = world.plane.kubectl("create", "token", "standby", "--namespace", world.namespace).strip()
    return world.plane.kubeconfig_for(f"standby-{world.namespace}", {"token": token})


def may_read_the_lease(world: World) -> bool:
    """The API server's own answer."""
    account = f"system:serviceaccount:{world.namespace}:standby"
    words = ("auth", "can-i", "get", f"leases/{LEASE}", f"--namespace={world.namespace}", f"--as={account}")
    try:
        kubectl(world.plane, *words)
    except AssertionError:
        return False
    return True


@pytest.mark.accept("O-002.4")
async def test_a_second_operator_writes_nothing_and_reaches_no_database_while_the_first_leads(
    world: World, tmp_path: Path
) -> None:
    """With the right to read the Lease it has all it needs: whatever else it tried would be refused, and told."""
    # How many there ever were, by the server's own books.
    sessions = "SELECT sessions FROM pg_stat_database WHERE datname = $1"
    name = world.url.rsplit("/", 1)[1]
    async with world.operator(lease_name=LEASE) as first:
        await world.create("critic", shell(OBEDIENT), liveness=world.liveness())
        pod = await world.pod_running("critic")
        config = await asyncio.to_thread(reader_of_the_lease, world)
        await eventually(lambda: may_read_the_lease(world), within=20, what="the role is in force")
        # Its own way into the database, so that its sessions are told from the first one's.
        mine = await world.server.fresh_database("standby")
        async with operator_process(
            world.plane,
            tmp_path,
            databases=[database(mine)],
            namespaces=[world.namespace],
            lease_name=LEASE,
            environment={"KUBECONFIG": str(config), "TENURE_LOG_LEVEL": "DEBUG"},
            wait_for="standing by",
        ) as second:

            async def ready() -> bool:
                return (await second.page("readyz"))[0] == 200

            await eventually(ready, within=20, what="the standby is ready")
            # Everything happens that an operator acts upon.
            await world.insert_row(pod["metadata"]["uid"], process_kind="critic", liveness_interval_s=600.0)
            await world.mark(pod["metadata"]["uid"])
            stop = await world.stopped("critic", pod["metadata"]["uid"])
            assert stop["origin"] == "Table"
            await world.stop("critic")
            await world.until("critic", lambda s: s["stop"]["origin"] == "Resource")
            await world.start("critic")
            await world.next_instance("critic", pod["metadata"]["uid"], phase="Starting")
            await asyncio.sleep(2)
            _, text = await second.page("metrics")
            assert "\ntenure_leader 0.0\n" in text
            assert 'tenure_stop_requests_total{origin="Table"} 0.0' in text
            ((count,),) = await world.sql(sessions, mine.rsplit("/", 1)[1])
            assert count == 0, "the standby was in its database"
            ((count,),) = await world.sql(sessions, name)
            assert count > 0, "the leader was in its own"
            log = [json.loads(line) for line in second.log().splitlines()]
            assert {line["level"] for line in log} <= {"info", "debug"}, log
            assert "orbidden" not in second.log()
        assert first.metric("tenure_leader") == 1
        assert len(world.history.pod_names("critic")) == 2
