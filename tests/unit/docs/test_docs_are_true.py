"""What the pages name exists: files, functions, targets, reasons, metrics. Whether it is well said is for readers."""

import ast
import importlib
import re
from pathlib import Path

import pytest

from tenure.model.reasons import (
    ConditionReason,
    ConditionType,
    EventReason,
    Phase,
    ServerConditionReason,
    ServerConditionType,
    ServerPhase,
)
from tenure.telemetry.metrics import Metrics

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
WRITTEN = [page for page in PAGES if page.parent.name != "reference"]
"""The pages that people write; the others are generated."""
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FOLDERS = ["charts", "crds", "docs", "examples", "operator", "requirements", "tests", "tools"]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """The page without its code blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def code_spans(page: Path) -> list[str]:
    """Everything in backticks outside of code blocks."""
    return re.findall(r"`([^`\n]+)`", prose(page))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in LINK.findall(prose(page)):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_every_file_of_ours_that_is_named_in_backticks_exists(page: Path) -> None:
    missing = []
    for span in code_spans(page):
        path = span.split("::")[0].rstrip("/")
        if path.split("/")[0] in FOLDERS and "/" in path and " " not in path:
            found = any(ROOT.glob(path)) if "*" in path else (ROOT / path).exists()
            missing += [] if found else [span]
    assert not missing


def modules_named(page: Path) -> dict[str, list[object]]:
    """The modules of ``tenure`` whose files the page links or names, by their last name."""
    found: dict[str, list[object]] = {}
    for path in set(re.findall(r"operator/(tenure/[\w/]+)\.py", page.read_text(encoding="utf-8"))):
        module = importlib.import_module(path.replace("/", "."))
        found.setdefault(path.rpartition("/")[2], []).append(module)
    return found


def has(thing: object, names: list[str]) -> bool:
    for name in names:
        if not hasattr(thing, name):
            return False
        thing = getattr(thing, name)
    return True


def test_every_function_named_in_the_architecture_page_exists_in_a_file_that_it_names() -> None:
    page = DOCS / "architecture.md"
    modules = modules_named(page)
    named = [span for span in code_spans(page) if re.fullmatch(r"[a-z_]+(\.\w+)+", span)]
    fields_of_objects = ("status.", "spec.", "metadata.")
    functions = [span for span in named if not span.startswith(fields_of_objects)]
    assert len(functions) > 30
    unknown = [
        span
        for span in functions
        if not any(has(module, span.split(".")[1:]) for module in modules.get(span.split(".")[0], []))
    ]
    assert not unknown


def rows_of(page: Path) -> set[str]:
    """What stands in backticks in the first column of the page's tables."""
    firsts = re.findall(r"^\| ([^|]+) \|", prose(page), re.MULTILINE)
    return {span for first in firsts for span in re.findall(r"`([^`]+)`", first)}


SHOWN = {*Phase, *ConditionReason, *EventReason, *ServerPhase, *ServerConditionReason}


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_every_phase_and_reason_is_explained(name: str) -> None:
    assert name in rows_of(DOCS / "operations.md")


def test_no_phase_and_no_reason_is_explained_that_does_not_exist() -> None:
    assert {row for row in rows_of(DOCS / "operations.md") if re.fullmatch(r"[A-Z]\w+", row)} <= SHOWN


def test_every_condition_is_explained() -> None:
    text = prose(DOCS / "operations.md")
    kinds = {*ConditionType, *ServerConditionType}
    assert not [kind for kind in kinds if f"`{kind}`:" not in text]


def test_every_metric_in_an_expression_exists() -> None:
    real = set(re.findall(r"^(tenure_\w+)(?:\{| )", Metrics().render().decode(), re.MULTILINE))
    named = set(
        re.findall(r"\btenure_(?!operator|agent\b|stopper|backend)\w+", prose(DOCS / "operations.md"))
    )
    assert named
    assert named <= real


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_every_make_target_that_is_named_exists(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile, re.MULTILINE))
    text = page.read_text(encoding="utf-8")
    commands = [body for _, body in FENCE.findall(text)] + re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    named = {
        target
        for command in commands
        for target in re.findall(r"^make ([a-z][a-z0-9-]*)", command, re.MULTILINE)
    }
    assert named <= targets


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_python_in_code_blocks_can_be_read_and_imports_what_exists(page: Path) -> None:
    for language, body in FENCE.findall(page.read_text(encoding="utf-8")):
        if language != "python":
            continue
        for node in ast.walk(ast.parse(body)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tenure"):
                module = importlib.import_module(node.module or "")
                assert not [alias.name for alias in node.names if not hasattr(module, alias.name)]
