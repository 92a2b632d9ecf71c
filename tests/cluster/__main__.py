"""``python -m tests.cluster COMMAND``: the cluster of the end-to-end tests and the demo."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from tests.cluster import build, images
from tests.cluster.choose import Cluster, cluster
from tests.cluster.say import CannotStart

_IMAGES: dict[str, Callable[[], Path]] = {
    "base": images.base,
    "tenure": images.tenure,
    "postgres": images.postgres,
}
_TOOLS: dict[str, Callable[[], Path]] = {
    "kubenode": build.kubenode,
    "kubectl": build.kubectl,
    "helm": build.helm,
    "coredns": build.coredns,
}


def main(words: list[str]) -> int:
    """Run one command; returns the exit code (1 with one sentence on stderr where the cluster cannot start)."""
    parser = _parser()
    given = parser.parse_args(words)
    try:
        code: int = given.run(cluster(), given)
    except CannotStart as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str, run: Callable[[Cluster, argparse.Namespace], int], text: str
    ) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        return added

    command("up", _up, "start the cluster unless it runs")
    command("down", _down, "end it and remove everything it left, also after a crash")
    command("status", _status, "say whether it runs; exit code 3 when it does not")
    command("kubeconfig", _kubeconfig, "print the kubeconfig's path")
    load = command("load", _load, "make image archives known to the cluster")
    load.add_argument("archives", nargs="+", type=Path, metavar="IMAGE.tar")
    image = command("image", _image, "build an image and print its archive's path")
    image.add_argument("name", nargs="?", default="tenure", choices=sorted(_IMAGES))
    image.add_argument("--load", action="store_true", help="load it into the cluster too")
    tool = command("tool", _tool, "compile a program and print its path")
    tool.add_argument("name", choices=sorted(_TOOLS))
    execute = command("exec", _execute, "run a command where the cluster can be reached, with KUBECONFIG set")
    execute.add_argument("words", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    command("shell", _shell, "open a shell there")
    return parser


def _up(target: Cluster, _: argparse.Namespace) -> int:
    target.up()
    return 0


def _down(target: Cluster, _: argparse.Namespace) -> int:
    target.down()
    return 0


def _status(target: Cluster, _: argparse.Namespace) -> int:
    running = target.ready()
    print(
        f"{type(target).__name__.lower()}: {'ready' if running else 'not running'}; kubeconfig {target.kubeconfig}"
    )
    return 0 if running else 3


def _kubeconfig(target: Cluster, _: argparse.Namespace) -> int:
    print(target.kubeconfig)
    return 0


def _load(target: Cluster, given: argparse.Namespace) -> int:
    target.load(*given.archives)
    return 0


def _image(target: Cluster, given: argparse.Namespace) -> int:
    archive = _IMAGES[given.name]()
    print(archive)
    if given.load:
        target.load(archive)
    return 0


def _tool(_: Cluster, given: argparse.Namespace) -> int:
    print(_TOOLS[given.name]())
    return 0


def _execute(target: Cluster, given: argparse.Namespace) -> int:
    words = given.words[1:] if given.words[:1] == ["--"] else given.words
    if not words:
        raise CannotStart("exec needs a command: .venv/bin/python -m tests.cluster exec -- kubectl get pods")
    if not target.ready():
        raise CannotStart("the cluster does not run: make cluster-up")
    command = target.command(words)
    environment = target.environment()
    # Not a child: signals, terminal and exit code are the command's own.
    os.execvpe(command[0], command, environment)


def _shell(target: Cluster, given: argparse.Namespace) -> int:
    given.words = [os.environ.get("SHELL", "bash")]
    return _execute(target, given)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
