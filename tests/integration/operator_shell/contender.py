"""An operator whose work is to say that it works: a JSON line on standard output for each thing that happens.

Run as a program. All of it is the real one but for the scope, which ``CONTENDER_WORK`` chooses: ``idle``
waits to be cancelled, ``block`` stops the event loop for good, ``cling`` does not end when it is cancelled.
"""

import asyncio
import json
import os
import sys
import time

from tenure.operator.context import OperatorContext
from tenure.operator.main import Parts, main


def say(what: str, **more: object) -> None:
    """``at`` is the system's monotonic clock, which all processes share."""
    print(json.dumps({"what": what, "at": time.monotonic(), **more}), flush=True)


async def work(context: OperatorContext) -> None:
    """Say ``leading``, and ``ended`` when cancelled."""
    say("leading")
    context.watches.started()
    try:
        match os.environ.get("CONTENDER_WORK", "idle"):
            case "block":
                time.sleep(120)
            case "cling":
                for _ in range(1000):
                    try:
                        await asyncio.sleep(120)
                    except asyncio.CancelledError:
                        say("clinging")
            case _:
                await asyncio.sleep(float("inf"))
    finally:
        context.watches.ended()
        say("ended")


if __name__ == "__main__":
    sys.exit(main(Parts(scope=work, on_port=lambda port: say("serving", port=port))))
