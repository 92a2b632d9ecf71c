"""``status.stops`` as a tenant may edit it: what cannot be recorded is its author's loss, and nobody else's."""

from typing import Any

import pytest
from tests.unit.passes.bench import Bench

from tenure.operator.passes.ledger import RETRY
from tenure.storage.stops import StopEntry


class Ledger:
    """A store that takes whatever the table takes."""

    def __init__(self) -> None:
        self.entries: list[StopEntry] = []

    async def record_stop(self, entry: StopEntry) -> None:
        assert entry.origin in ("Resource", "Table", "Deletion", "Replacement", "Disruption")
        self.entries.append(entry)


FINISHED = "2026-11-30T09:00:00Z"


@pytest.mark.accept("K-9")
@pytest.mark.parametrize(
    "forged",
    [
        {"instance": "x", "finishedAt": FINISHED},
        {"instance": "x", "origin": "Table"},
        {"instance": "", "origin": "Table", "finishedAt": FINISHED},
    ],
    ids=["no origin", "not finished", "no instance"],
)
async def test_a_stop_that_no_ledger_takes_is_not_offered_and_does_not_bring_the_key_back(
    forged: dict[str, Any],
) -> None:
    ledger = Ledger()
    bench = Bench(store=ledger)
    await bench.started()
    bench.edit_status(stops=[forged])
    assert await bench.run() != RETRY
    assert ledger.entries == []
    assert bench.ledger.due(), "the store was not given up for a while"
