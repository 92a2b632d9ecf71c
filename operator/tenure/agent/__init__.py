"""What an agent embeds: it heartbeats, hears a request to stop, and ends after the task in hand.

The shortest agent::

    import asyncio
    from tenure.agent import run

    asyncio.run(run(claim, work))       # claim() -> task or None, work(task)

``run`` is the loop; ``LivenessReporter`` is what it is built on, for agents that have a loop of their own;
``ThreadedLivenessReporter`` and ``run_blocking`` are for agents whose tasks block the event loop, or that
have none.

Importing this package is cheap: database drivers are imported when a database is used.
"""

from tenure.agent.loop import run, run_blocking, stop_on_signals
from tenure.agent.reporter import LivenessReporter
from tenure.agent.settings import SettingsError
from tenure.agent.threaded import ThreadedLivenessReporter

__all__ = [
    "LivenessReporter",
    "SettingsError",
    "ThreadedLivenessReporter",
    "run",
    "run_blocking",
    "stop_on_signals",
]
