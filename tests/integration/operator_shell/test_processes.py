"""Operators as real processes: killed, frozen, told to stop."""

import json
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tests.integration.operator_shell.processes import Fleet
from tests.support.api import AdminClient, path
from tests.support.wait import eventually

LEASE = "tenure-operator"
Freeze = Callable[[], AbstractContextManager[None]]


async def holder(api: AdminClient, namespace: str) -> str:
    """Who the Lease says holds it."""
    lease = await api.get(path("leases", namespace, LEASE))
    return str(lease["spec"].get("holderIdentity") or "")


@pytest.mark.accept("O-002.4")
async def test_after_kill_9_of_the_leader_the_standby_leads_within_the_duration_and_five_seconds(
    fleet: Fleet, api: AdminClient, namespace: str
) -> None:
    seconds = 6
    first = await fleet.start("first", namespace, seconds=seconds)
    await first.says("leading", within=30)
    second = await fleet.start("second", namespace, seconds=seconds)
    await second.port()
    # The standby has looked, and let it be, for longer than the duration.
    began = time.monotonic()
    await eventually(lambda: time.monotonic() - began > seconds + 1, within=seconds + 3, every=0.2)
    assert not second.times("leading")
    killed = time.monotonic()
    first.signal(signal.SIGKILL)
    led = await second.says("leading", within=seconds + 5)
    assert led - killed <= seconds + 5
    assert (await holder(api, namespace)).startswith("second_")


async def test_sigterm_releases_the_lease_and_the_standby_leads_at_once(
    fleet: Fleet, api: AdminClient, namespace: str
) -> None:
    seconds = 60
    first = await fleet.start("first", namespace, seconds=seconds)
    await first.says("leading", within=30)
    second = await fleet.start("second", namespace, seconds=seconds)
    await eventually(lambda: any("standing by" in line for line in second.log), within=30)
    asked = time.monotonic()
    first.signal(signal.SIGTERM)
    assert await first.exit_code(within=10) == 0
    ended = first.times("ended")[0]
    led = await second.says("leading", within=10)
    assert led > ended, "two operators at once"
    assert led - asked < seconds / 2
    second.signal(signal.SIGINT)
    assert await second.exit_code(within=10) == 0
    assert await holder(api, namespace) == ""


async def test_a_standby_told_to_stop_leaves_the_lease_alone(
    fleet: Fleet, api: AdminClient, namespace: str
) -> None:
    first = await fleet.start("first", namespace, seconds=30)
    await first.says("leading", within=30)
    second = await fleet.start("second", namespace, seconds=30)
    await eventually(lambda: any("standing by" in line for line in second.log), within=30)
    second.signal(signal.SIGTERM)
    assert await second.exit_code(within=10) == 0
    assert (await holder(api, namespace)).startswith("first_")
    assert not first.times("ended")


async def test_with_the_api_server_frozen_the_leader_stops_in_time_and_leads_again_afterwards(
    fleet: Fleet, namespace: str, freeze: Freeze
) -> None:
    seconds = 6
    only = await fleet.start("only", namespace, seconds=seconds)
    await only.says("leading", within=30)
    with freeze():
        frozen = time.monotonic()
        ended = await only.says("ended", within=seconds)
        assert ended - frozen <= seconds
        assert (await only.page("/healthz"))[0] == 200, "a restart would not help"
    await eventually(lambda: len(only.times("leading")) == 2, within=20, what="leading again")
    assert only.process.returncode is None


@pytest.mark.parametrize("work", ["block", "cling"])
async def test_a_process_whose_work_outlives_the_lease_is_ended(
    fleet: Fleet, namespace: str, freeze: Freeze, work: str
) -> None:
    seconds = 6
    only = await fleet.start("only", namespace, seconds=seconds, CONTENDER_WORK=work)
    led = await only.says("leading", within=30)
    with freeze():
        frozen = time.monotonic()
        assert await only.exit_code(within=seconds) == 70
    # A stuck loop renews nothing at all: the time runs from the claim. Else from the last renewal.
    assert time.monotonic() <= (led if work == "block" else frozen) + seconds
    assert any("ending the process" in line for line in only.log)


async def test_wrong_settings_are_named_and_end_it_with_code_two(fleet: Fleet, namespace: str) -> None:
    wrong = await fleet.start(
        "wrong", namespace, seconds=15, TENURE_POLL_SECONDS="often", TENURE_LOG_LEVEL="loud"
    )
    assert await wrong.exit_code(within=20) == 2
    text = "".join(wrong.log)
    assert "TENURE_POLL_SECONDS" in text
    assert "TENURE_LOG_LEVEL" in text
    assert "often" not in text


async def test_without_a_cluster_it_says_what_it_looked_for(fleet: Fleet, namespace: str) -> None:
    lost = await fleet.start("lost", namespace, seconds=15, KUBECONFIG="/nowhere", KUBERNETES_SERVICE_HOST="")
    assert await lost.exit_code(within=20) == 1
    assert "KUBERNETES_SERVICE_HOST" in "".join(lost.log)
    assert "Traceback" not in "".join(lost.log)


async def test_leader_and_standby_are_ready_and_the_metric_tells_them_apart(
    fleet: Fleet, namespace: str
) -> None:
    first = await fleet.start("first", namespace, seconds=15)
    await first.says("leading", within=30)
    second = await fleet.start("second", namespace, seconds=15)

    async def ready() -> bool:
        return (await second.page("/readyz"))[0] == 200

    await eventually(ready, within=10, what="the standby is ready")
    assert (await first.page("/readyz"))[0] == 200
    assert (await first.page("/healthz")) == (200, "ok")
    assert "\ntenure_leader 1.0\n" in (await first.page("/metrics"))[1]
    assert "\ntenure_leader 0.0\n" in (await second.page("/metrics"))[1]


async def test_a_standby_that_cannot_read_the_lease_is_not_ready(
    fleet: Fleet, namespace: str, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                # Port 9 of loopback: nobody is there.
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    blind = await fleet.start("blind", namespace, seconds=3, KUBECONFIG=str(config))
    assert (await blind.page("/readyz"))[0] == 503
    assert (await blind.page("/healthz"))[0] == 200
