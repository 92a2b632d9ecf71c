"""The Go programs of the harness, compiled from pinned modules: Kubernetes with etcd, pause, helm,
CoreDNS."""

import os
import subprocess
from pathlib import Path

from tests.cluster import cache, toolchain
from tests.cluster.say import CannotStart, say, step

HERE = Path(__file__).resolve().parent
KUBERNETES = "v1.36.3"
_MAJOR, _MINOR = KUBERNETES.removeprefix("v").split(".")[:2]
_VERSION_FLAGS = " ".join(
    f"-X {package}.gitVersion={KUBERNETES} -X {package}.gitMajor={_MAJOR} -X {package}.gitMinor={_MINOR}"
    for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
)


def kubenode() -> Path:
    """etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kube-proxy and kubectl in
    one program."""
    note = "about 7 minutes on two cores, once"
    return _build("kubenode", HERE / "kubenode", ".", note=note, flags=_VERSION_FLAGS, without=("pause",))


def pause() -> Path:
    """The program that keeps a pod's namespaces open; static, standard library only."""
    return _build("pause", HERE / "kubenode" / "pause", ".", note="a second", module=HERE / "kubenode")


def helm() -> Path:
    """``helm`` as a path that can be called."""
    return link(
        "helm", _build("helm", HERE / "helm", "helm.sh/helm/v4/cmd/helm", note="about 2 minutes, once")
    )


def coredns() -> Path:
    """A CoreDNS with the few plugins that a cluster's own names need."""
    return _build("coredns", HERE / "coredns", ".", note="about 2 minutes, once")


def link(name: str, program: Path) -> Path:
    """A stable path ``<cache>/bin/<name>`` for a program whose file name carries a digest."""
    path = cache.root() / "bin" / name
    scratch = path.with_name(f".{name}.{os.getpid()}.link")
    scratch.unlink(missing_ok=True)
    scratch.symlink_to(program)
    scratch.replace(path)
    return path


def kubectl() -> Path:
    """``kubectl`` as a path that can be called: the same program under another name."""
    return link("kubectl", kubenode())


def _build(
    name: str,
    folder: Path,
    package: str,
    *,
    note: str,
    flags: str = "",
    module: Path | None = None,
    without: tuple[str, ...] = (),
) -> Path:
    """Compile ``package`` in ``folder``; the key is everything the result depends on but the compiler."""
    sources = sorted(path for path in folder.iterdir() if path.name not in without)
    key = cache.digest(
        [*sources, *(() if module is None else (module / "go.mod", module / "go.sum")), package, flags]
    )

    def make(target: Path) -> None:
        command = [
            str(toolchain.go()),
            "build",
            "-trimpath",
            "-ldflags",
            f"-s -w {flags}".strip(),
            "-o",
            str(target),
            package,
        ]
        with step(f"compiling {name} ({note})"):
            _run_quietly(command, folder)

    return cache.artefact("bin", f"{name}-{key}", make)


def _run_quietly(command: list[str], folder: Path) -> None:
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        say(done.stderr[-4000:])
        raise CannotStart(
            f"'{' '.join(command[:2])}' failed in {folder.name}: see the compiler's words above"
        )
