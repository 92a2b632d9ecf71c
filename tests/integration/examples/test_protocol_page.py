"""docs/protocol.md against the code that it describes."""

import subprocess

from tests.integration.examples.page import blocks, code, read, tables

from tenure.model.masked import Masked
from tenure.protocol import claims, frames
from tenure.protocol.capabilities import ADVERTISED
from tenure.protocol.proof import prove

PAGE = read("protocol.md")
TABLES = tables(PAGE)


def test_the_test_vector_is_what_a_server_answers() -> None:
    vector = {row[0]: code(row[1])[0] for row in TABLES["vector"]}
    credential, challenge = Masked(vector["credential"]), vector["challenge"]
    assert prove(credential, challenge, vector["home_dir"]) == vector["proof"]
    other = next(label for label in vector if label.startswith("proof with"))
    assert prove(credential, challenge, code(other)[0]) == vector[other]
    command = next(block for block in blocks(PAGE, "sh") if "openssl" in block)
    made = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert made.stdout.strip().endswith(vector["proof"])


def test_the_claims_table_is_what_a_server_reckons() -> None:
    rows = TABLES["asked for"]
    assert rows
    for asked, idle, in_force, changes in rows:
        period = claims.effective_period(int(idle.split()[0]), int(asked))
        assert period.ms == int(in_force)
        assert [change.reason.value for change in period.changes] == code(changes)


def test_every_action_and_capability_is_on_the_page() -> None:
    assert [code(row[0])[0] for row in TABLES["action"]] == [action.value for action in frames.Action]
    assert {code(row[0])[0] for row in TABLES["capability"]} == ADVERTISED
