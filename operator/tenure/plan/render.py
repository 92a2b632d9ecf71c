"""The pod of one instance, made from the template as it is stored.

The template travels verbatim; the operator adds what makes a pod one lifetime of one agent process. What it adds is
not part of the template hash, so a newer operator that adds more replaces nothing.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from tenure.model.ids import child_name
from tenure.model.objects import API_VERSION
from tenure.model.pods import AGENT_ROLE, OWNER_KIND, ROLE_LABEL
from tenure.model.reasons import LivenessMode
from tenure.model.resources import AgentProcess

HASH_ANNOTATION = "tenure.dev/template-hash"
TOKEN_ANNOTATION = "tenure.dev/restart-token"  # noqa: S105 (not a credential: spec.restartToken)
DATABASE_ANNOTATION = "tenure.dev/liveness-database"
"""Absent in mode Pod. With the kind below, what is needed to ask through the row once the object is gone."""
KIND_ANNOTATION = "tenure.dev/process-kind"
NAME_LABEL = "tenure.dev/agent-process"
EVICTION_ANNOTATIONS: Mapping[str, str] = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
"""What cluster-autoscaler and Karpenter respect (their documentation: "What types of pods can prevent CA from removing
a node", "Disruption: pod-level controls")."""


def render_pod(resource: AgentProcess, ordinal: int, template_hash: str) -> dict[str, Any]:
    """The JSON of the pod number ``ordinal``; shares nothing with the template."""
    template = deepcopy(resource.template)
    metadata = template.get("metadata") or {}
    spec: dict[str, Any] = template["spec"]
    spec["restartPolicy"] = "Never"
    spec["terminationGracePeriodSeconds"] = resource.spec.drain.grace_period_seconds
    spec.setdefault("automountServiceAccountToken", False)
    agent = spec["containers"][0]
    ours = _environment(resource)
    names = {entry["name"] for entry in ours}
    # First, so that the author's entries may refer to them; the author's own of the same name give way.
    agent["env"] = [*ours, *(e for e in agent.get("env") or [] if e.get("name") not in names)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": child_name(resource.name, resource.uid, ordinal),
            "namespace": resource.namespace,
            "labels": {**(metadata.get("labels") or {}), **_labels(resource)},
            "annotations": {
                **(metadata.get("annotations") or {}),
                HASH_ANNOTATION: template_hash,
                TOKEN_ANNOTATION: resource.spec.restart_token,
                **_liveness_annotations(resource),
            },
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": OWNER_KIND,
                    "name": resource.name,
                    "uid": resource.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": spec,
    }


def protected(annotations: Mapping[str, str]) -> bool:
    """Whether a pod carries the annotations that make autoscalers spare it."""
    return all(annotations.get(name) == value for name, value in EVICTION_ANNOTATIONS.items())


def protection_is_the_authors(template: Mapping[str, Any]) -> bool:
    """The template says itself what autoscalers may do; the operator then keeps out of it."""
    metadata = template.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    return isinstance(annotations, Mapping) and any(name in annotations for name in EVICTION_ANNOTATIONS)


def _labels(resource: AgentProcess) -> dict[str, str]:
    return {ROLE_LABEL: AGENT_ROLE, NAME_LABEL: resource.name, "app.kubernetes.io/managed-by": "tenure"}


def _liveness_annotations(resource: AgentProcess) -> dict[str, str]:
    if resource.spec.liveness.mode is LivenessMode.POD:
        return {}
    return {
        DATABASE_ANNOTATION: resource.spec.liveness.database,
        KIND_ANNOTATION: resource.process_kind,
    }


def _environment(resource: AgentProcess) -> list[dict[str, Any]]:
    uid = {"fieldRef": {"fieldPath": "metadata.uid"}}
    liveness = resource.spec.liveness
    found: list[dict[str, Any]] = [
        {"name": "TENURE_INSTANCE_ID", "valueFrom": uid},
        {"name": "TENURE_PROCESS_KIND", "value": resource.process_kind},
        {"name": "TENURE_LIVENESS_INTERVAL", "value": str(liveness.interval_seconds)},
    ]
    if liveness.credentials_secret_ref is not None:
        secret = liveness.credentials_secret_ref
        key = {"secretKeyRef": {"name": secret.name, "key": secret.key}}
        found.append({"name": "TENURE_DATABASE_URL", "valueFrom": key})
    return found
