"""The first server of a world never says a word; those that follow are real. Run in the server's own process, before it
begins (``STAND_IN_PROGRAM``, see ``world.environment``). HANGING: a file that is not there yet."""

import os
import signal
from pathlib import Path

try:
    Path(os.environ["HANGING"]).touch(exist_ok=False)
except FileExistsError:
    pass
else:
    while True:
        signal.pause()
