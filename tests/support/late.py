"""Runs another program in a world in which everything takes its time (``tests.support.jitter``).

``python -m tests.support.late SEED TEST -m MODULE ...`` or ``... -c TEXT ...``: the rest as for ``python``.
"""

import os
import runpy
import sys
from collections.abc import Sequence

VARIABLE = "TENURE_JITTER"
SLOWER = 3.0 if os.environ.get(VARIABLE) else 1.0
"""How much longer a program may take to start: what makes it late has much to import, several times at once."""


def command(*words: str) -> Sequence[str]:
    """``words`` for ``python``, late if the test is."""
    seed = os.environ.get(VARIABLE, "")
    if not seed:
        return words
    return ("-m", "tests.support.late", seed, os.environ.get("PYTEST_CURRENT_TEST", ""), *words)


def main(seed: str, test: str, kind: str, program: str, *arguments: str) -> None:
    """Be that program from now on."""
    from tests.support import jitter  # which imports what most tests do not need

    jitter.begin(seed, test)
    jitter.install()
    sys.argv = [program if kind == "-m" else kind, *arguments]
    if kind == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        exec(program, {"__name__": "__main__"})


if __name__ == "__main__":
    main(*sys.argv[1:])
