"""Set the stage, tell the story inside the cluster's network, and take everything away again."""

import subprocess
import sys
import time
from pathlib import Path

from tests.cluster import build, images
from tests.cluster.choose import Cluster, cluster
from tests.cluster.say import CannotStart

ROOT = Path(__file__).resolve().parent.parent.parent
TENURE, POSTGRES = "tenure:dev", "postgres:test"


def main() -> int:
    """The exit code: that of the story, or 1 where no cluster can be had."""
    print(
        "Tenure demo: three agents work through a queue. One is stopped through its resource, one through the"
    )
    print(
        "database, one crashes. No task may get lost, and none may be done twice. Then a backend is killed while"
    )
    print("its agent works: the same process finishes its turn, for the next backend.\n", flush=True)
    began, target = time.monotonic(), cluster()
    ran_before = target.ready()
    try:
        target.up()
        try:
            load(target)
            print(f"\nThe stage is set after {time.monotonic() - began:.0f} s.\n", flush=True)
            words = [sys.executable, "-m", "examples.demo.story", TENURE, POSTGRES]
            code = subprocess.run(
                target.command(words), cwd=ROOT, env=target.environment(), check=False
            ).returncode
            if code == 0:
                print('\nTo try it by hand: docs/install.md, "On the demo\'s cluster".\n', flush=True)
            return code
        finally:
            if not ran_before:
                target.down()
    except CannotStart as missing:
        print(f"The demo cannot run here: {missing}")
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted; the cluster has been taken down.")
        return 130


def load(target: Cluster) -> None:
    """Build what is not in the cache yet, and make it known to the cluster; nothing is fetched after this."""
    build.helm()
    target.load(images.tenure(TENURE), images.worker(), images.session(), images.postgres(POSTGRES))


if __name__ == "__main__":
    sys.exit(main())
