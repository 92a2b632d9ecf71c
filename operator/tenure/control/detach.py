"""A server that leaves the session, and the terminal, of whoever started it."""

import os
import signal
import sys
from collections.abc import Callable

from tenure.control.lifetime import EXIT_FAILED, EXIT_SETTINGS, say
from tenure.model.errors import InvalidSettings

Ready = Callable[[str], None]


def detached(work: Callable[[Ready], int]) -> int:
    """Run ``work`` in a child in a session of its own; 0 once that calls ``ready``, else its exit code.

    The child does not return from here. It has the terminal for its complaints until it is ready.
    """
    told, tell = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(told)
        _be_the_child(work, tell)
    os.close(tell)
    with os.fdopen(told, "rb") as pipe:
        if pipe.read(1):
            return 0
    _, status = os.waitpid(child, 0)
    return max(os.waitstatus_to_exitcode(status), 0) or EXIT_FAILED


def _be_the_child(work: Callable[[Ready], int], tell: int) -> None:
    code = EXIT_FAILED
    try:
        os.setsid()
        # Until the loop handles it. Not ignored: what is ignored, agents would inherit.
        signal.signal(signal.SIGHUP, lambda *_: None)
        signal.signal(signal.SIGINT, lambda *_: None)

        def ready(line: str) -> None:
            say(line)
            nothing = os.open(os.devnull, os.O_RDWR)
            for handle in (0, 1, 2):
                os.dup2(nothing, handle)
            os.close(nothing)
            os.write(tell, b".")
            os.close(tell)

        code = work(ready)
    except InvalidSettings as error:
        for problem in error.problems:
            say(f"tenure control-server: {problem}")
        code = EXIT_SETTINGS
    except Exception as error:  # noqa: BLE001  # the parent is waiting for a word
        say(f"tenure control-server: {type(error).__name__}")
    finally:
        # Not sys.exit: the parent's exit handlers and buffers are not this process's.
        os._exit(code)
