"""The tables of refused and accepted resources of both kinds, and the examples, applied to a real API server."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.integration.crds import server_table, table
from tests.integration.crds.refusing import refusal
from tests.integration.crds.table import Accepted, Refused
from tests.support.agent_manifests import Manifest
from tests.support.api import AdminClient, path

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
TABLES = {"AgentProcess": table, "ControlServer": server_table}
PLACES = {
    "AgentProcess": path("agentprocesses", "default"),
    "ControlServer": path("controlservers", "default"),
}


def _rows(name: str) -> list[Any]:
    return [
        pytest.param(PLACES[kind], row, id=f"{kind}: {row}")
        for kind, rows in TABLES.items()
        for row in getattr(rows, name)
    ]


def _samples() -> list[Any]:
    files = sorted(EXAMPLES.glob("*.yaml"))
    documents = [d for file in files for d in yaml.safe_load_all(file.read_text()) if d]
    return [
        pytest.param(PLACES[d["kind"]], d, id=f"{d['kind']}: {d['metadata']['name']}")
        for d in documents
        if d["kind"] in PLACES
    ]


@pytest.mark.parametrize(("place", "row"), _rows("REFUSED"))
@pytest.mark.accept("K-9")
async def test_a_wrong_value_is_refused_with_a_sentence_that_says_what_is_allowed_and_names_the_field(
    place: str, row: Refused, api: AdminClient
) -> None:
    refused = await refusal(api, place, row.manifest)
    assert refused.status == 422
    assert row.sentence in refused.message
    assert row.path in refused.message or row.path.rpartition(".")[0] in refused.message


@pytest.mark.parametrize(("place", "row"), _rows("MISSPELT"))
async def test_a_field_that_does_not_exist_is_refused_by_name(
    place: str, row: Refused, api: AdminClient
) -> None:
    refused = await refusal(api, place, row.manifest)
    assert row.sentence in refused.message


@pytest.mark.parametrize(("place", "row"), _rows("MISSPELT"))
async def test_a_field_that_does_not_exist_is_not_stored_for_who_does_not_ask(
    place: str, row: Refused, api: AdminClient
) -> None:
    kept = await api.create(place, row.manifest, dryRun="All", fieldValidation="Ignore")
    name = row.sentence.removeprefix('unknown field "').removesuffix('"').split(".")
    inside = kept
    for part in name[:-1]:
        inside = inside.get(part, {})
    assert name[-1] not in inside


@pytest.mark.parametrize(("place", "row"), _rows("ACCEPTED"))
async def test_what_is_allowed_is_accepted_as_it_is(place: str, row: Accepted, api: AdminClient) -> None:
    await api.create(place, row.manifest, dryRun="All", fieldValidation="Strict")


@pytest.mark.parametrize(("place", "sample"), _samples())
async def test_every_example_is_accepted(place: str, sample: Manifest, api: AdminClient) -> None:
    await api.create(place, sample, dryRun="All", fieldValidation="Strict")
