"""The real operator, in this process or in one of its own, for tests that judge it by what a user sees."""

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import aiohttp

from tenure.cluster.client import KubernetesClient
from tenure.cluster.ports import AgentCluster
from tenure.cluster.server_ports import ServerCluster
from tenure.model.masked import Masked
from tenure.model.settings import DatabaseConfig, OperatorSettings
from tenure.operator.clock import Clock
from tenure.operator.context import OperatorContext
from tenure.operator.main import Parts, operate
from tests.cluster.control_plane import ControlPlane
from tests.support import late
from tests.support.wait import eventually

ENDS_WITHIN = 20.0
LEASE_SECONDS = 15
"""As in production: a machine so busy that nothing is renewed for long ends the process, here that of the tests."""
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class RunningOperator:
    """An operator within this process. ``leading`` is set when it leads and has seen everything once."""

    settings: OperatorSettings
    port: int = 0
    leading: asyncio.Event = field(default_factory=asyncio.Event)
    contexts: list[OperatorContext] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    """What came out of the scope, which never ends by itself."""

    async def page(self, path: str) -> tuple[int, str]:
        """Status and text of one of the three pages."""
        return await page(self.port, path)

    def metric(self, name: str, **labels: str) -> float:
        """A sample's value; 0 when there is none."""
        return self.contexts[-1].metrics.registry.get_sample_value(name, labels) or 0.0


async def page(port: int, path: str) -> tuple[int, str]:
    """Status and text of a page of an operator on this host."""
    async with (
        aiohttp.ClientSession(trust_env=False, timeout=aiohttp.ClientTimeout(total=5)) as session,
        session.get(f"http://127.0.0.1:{port}/{path}") as answer,
    ):
        return answer.status, await answer.text()


def database(
    url: str, name: str = "default", *, namespaces: Sequence[str] | None = None, store: bool = True
) -> DatabaseConfig:
    """A named database as the operator is configured with it."""
    return DatabaseConfig(
        name, Masked(url), None if namespaces is None else frozenset(namespaces), store=store
    )


@asynccontextmanager
async def running_operator(
    plane: ControlPlane,
    *,
    databases: Sequence[DatabaseConfig] = (),
    namespaces: Sequence[str] = (),
    lease_name: str = "",
    lease_namespace: str = "default",
    lease_seconds: int = LEASE_SECONDS,
    poll_seconds: float = 1.0,
    wrap_cluster: Callable[[AgentCluster], AgentCluster] = lambda cluster: cluster,
    wrap_servers: Callable[[ServerCluster], ServerCluster] = lambda cluster: cluster,
    clock: Clock | None = None,
    may_fail: bool = False,
) -> AsyncIterator[RunningOperator]:
    """The operator's ``operate()`` until the block ends; entered when it leads.

    Each has a Lease of its own, and works in ``namespaces`` (empty: everywhere). At the end it must not have
    met anything unforeseen, unless ``may_fail``.
    """
    settings = OperatorSettings.model_construct(
        namespaces=tuple(sorted(namespaces)),
        databases_dir=None,
        lease_namespace=lease_namespace,
        lease_name=lease_name or f"tenure-{uuid.uuid4().hex[:8]}",
        lease_seconds=lease_seconds,
        http_port=0,
        poll_seconds=poll_seconds,
        pod_name="tests",
    )
    running, stop = RunningOperator(settings), asyncio.Event()
    parts = Parts(
        connect=partial(KubernetesClient.connect, {"KUBECONFIG": str(plane.kubeconfig)}),
        wrap_cluster=wrap_cluster,
        wrap_servers=wrap_servers,
        scope=partial(_scope, running),
        overrun=lambda: None,
        clock=clock or Clock(),
        on_port=partial(setattr, running, "port"),
    )
    work = asyncio.create_task(operate(settings, tuple(databases), parts, stop), name="operator")
    began = asyncio.create_task(running.leading.wait())
    try:
        await asyncio.wait({work, began}, return_when=asyncio.FIRST_COMPLETED, timeout=30)
        if work.done():
            work.result()
        assert running.leading.is_set(), "the operator did not get its Lease within 30 s"
        yield running
    finally:
        stop.set()
        began.cancel()
        ended, _ = await asyncio.wait({work}, timeout=ENDS_WITHIN)
        if not ended:
            work.cancel()
            await asyncio.wait({work})
    assert ended, f"the operator did not end within {ENDS_WITHIN} s of being told to"
    work.result()
    if not may_fail:
        assert not running.failures, f"the operator's scope failed: {running.failures!r}"
        unforeseen = running.metric("tenure_reconcile_errors_total", kind="unexpected")
        assert unforeseen == 0, f"{unforeseen:.0f} passes failed for a reason nobody foresaw"


async def _scope(running: RunningOperator, context: OperatorContext) -> None:
    from tenure.operator.scope import run_scope

    running.contexts.append(context)
    try:
        await run_scope(replace(context, on_synced=running.leading.set))
    except Exception as error:
        running.failures.append(error)
        raise


@dataclass
class OperatorProcess:
    """An operator in a process of its own, as its image starts it."""

    process: subprocess.Popen[bytes]
    log_file: Path
    port: int

    def log(self) -> str:
        """Everything it has written."""
        return self.log_file.read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self.process.kill()
        self.process.wait(10)

    async def terminate(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait, ENDS_WITHIN)

    async def page(self, path: str) -> tuple[int, str]:
        """Status and text of one of the three pages."""
        return await page(self.port, path)


@asynccontextmanager
async def operator_process(
    plane: ControlPlane,
    folder: Path,
    *,
    databases: Sequence[DatabaseConfig] = (),
    namespaces: Sequence[str] = (),
    lease_name: str = "",
    lease_seconds: int = LEASE_SECONDS,
    poll_seconds: float = 1.0,
    command: Sequence[str] = ("-c", "from tenure.cli.main import app; app()", "operator"),
    environment: Mapping[str, str] | None = None,
    wait_for: str = '"leading"',
) -> AsyncIterator[OperatorProcess]:
    """``tenure operator`` with settings by environment and a directory of databases; entered when its log says
    ``wait_for``. Killed at the end if it still runs."""
    from tests.support.postgres import free_port

    folder.mkdir(parents=True, exist_ok=True)
    port = free_port("127.0.0.1")
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONPATH": os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)]),
        "KUBECONFIG": str(plane.kubeconfig),
        "TENURE_NAMESPACES": ",".join(namespaces),
        "TENURE_DATABASES_DIR": str(_databases_dir(folder, databases)),
        "TENURE_LEASE_NAMESPACE": "default",
        "TENURE_LEASE_NAME": lease_name or f"tenure-{uuid.uuid4().hex[:8]}",
        "TENURE_LEASE_SECONDS": str(lease_seconds),
        "TENURE_HTTP_PORT": str(port),
        "TENURE_POLL_SECONDS": str(poll_seconds),
        **(environment or {}),
    }
    log_file = folder / f"operator-{uuid.uuid4().hex[:8]}.log"
    with log_file.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, *late.command(*command)],
            env=environ,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    running = OperatorProcess(process, log_file, port)
    try:
        await eventually(
            lambda: wait_for in running.log() or process.poll() is not None,
            within=30 * late.SLOWER,
            what="the operator leads",
        )
        yield running
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait(10)


def _databases_dir(folder: Path, databases: Sequence[DatabaseConfig]) -> Path:
    root = folder / "databases"
    for each in databases:
        place = root / each.name
        place.mkdir(parents=True, exist_ok=True)
        (place / "url").write_text(each.url.reveal() + "\n")
        if each.namespaces is not None:
            (place / "namespaces").write_text(",".join(sorted(each.namespaces)))
        if each.store:
            (place / "store").touch()
    root.mkdir(exist_ok=True)
    return root
