"""Bring what is generated from the code into the chart: the CRDs and the operator's permissions.

    python tools/sync_chart.py [--check]

``--check`` writes nothing and fails, naming the files, when the chart is behind. ``make generate`` runs it
after the CRDs were generated.
"""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from tenure.cluster.calls import CALLS, LEASES, Call, Verb
from tenure.operator.rbac import DEFAULT_NAME

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "charts" / "tenure"
_CRD = """{{- if .Values.crds.install }}
HEAD
metadata:
  annotations:
    # The definitions, and so all AgentProcesses, survive an uninstall.
    helm.sh/resource-policy: keep
REST{{- end }}
"""
_RULES_HEAD = (
    "# Generated from operator/tenure/cluster/calls.py: what the operator calls. Run `make generate`."
)


def crd_template(text: str) -> str:
    """A CRD as a chart's template: installed if wanted, kept on uninstall, its braces taken as they are."""
    head, found, rest = text.partition("\nmetadata:\n")
    if not found:
        raise SystemExit("a CRD without a metadata block in column one: was its generator changed?")
    escaped = [part.replace("{{", '{{ "{{" }}') for part in (head, rest)]
    return _CRD.replace("HEAD", escaped[0]).replace("REST", escaped[1])


def rules(calls: Iterable[Call]) -> str:
    """The rules of a Role: one for each resource, in the order of the declaration, each verb with its reason."""
    lines = [_RULES_HEAD]
    by_resource: dict[tuple[str, str], list[Call]] = {}
    for call in calls:
        by_resource.setdefault((call.resource.group, call.resource.rbac_name), []).append(call)
    for (group, resource), wanted in by_resource.items():
        # Limited to the operator's own Lease, but for the create: it is judged before the object has a name.
        named = [call for call in wanted if call.resource == LEASES and call.verb is not Verb.CREATE]
        for part, names in (
            (named, f'  resourceNames: ["{DEFAULT_NAME}"]'),
            ([c for c in wanted if c not in named], ""),
        ):
            if part:
                lines += [f'- apiGroups: ["{group}"]', f'  resources: ["{resource}"]', *filter(None, [names])]
                lines += ["  verbs:", *(f"    - {call.verb} # {call.why}" for call in part)]
    return "\n".join(lines) + "\n"


def rendered() -> dict[Path, str]:
    """Every generated file of the chart with its content."""
    on_leases = [call for call in CALLS if call.resource == LEASES]
    return {
        CHART / "files" / "rules.yaml": rules(call for call in CALLS if call not in on_leases),
        CHART / "files" / "rules-lease.yaml": rules(on_leases),
    } | {
        CHART / "templates" / "crds" / source.name: crd_template(source.read_text())
        for source in sorted((ROOT / "crds").glob("*.yaml"))
    }


def main() -> int:
    """Write or check; 0 when the chart is up to date."""
    parser = argparse.ArgumentParser(description="Bring generated files into the chart.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when behind")
    check: bool = parser.parse_args().check
    stale = [path for path, text in rendered().items() if not path.exists() or path.read_text() != text]
    if check:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is out of date: run make generate", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(rendered()[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
