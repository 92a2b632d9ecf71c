"""A store for tests that look at what is stored, and when."""

from dataclasses import replace

from tenure.ownership.holding import Holding, StoreConflict, StoreFailed


class MemoryStore:
    """``fail``: how many of the next stores fail without storing; ``lose``: how many fail after they stored."""

    def __init__(self, holding: Holding | None = None) -> None:
        self.holding = holding
        self.stores = 0
        self.fail = 0
        self.lose = 0

    async def load(self) -> Holding | None:
        return self.holding

    async def store(self, holding: Holding) -> Holding:
        if self.fail > 0:
            self.fail -= 1
            raise StoreFailed("not stored")
        version = self.holding.version if self.holding else ""
        if version != holding.version:
            if self.holding is not None and replace(self.holding, version="") == replace(holding, version=""):
                return self.holding
            raise StoreConflict("somebody else stored")
        self.stores += 1
        self.holding = replace(holding, version=str(self.stores))
        if self.lose > 0:
            self.lose -= 1
            raise StoreFailed("stored, and not said")
        return self.holding
