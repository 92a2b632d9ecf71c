"""What ``import tenure.backend`` costs whoever embeds it, with nothing but the extra ``backend`` installed."""

import json
import subprocess
import sys

# Of these only `kubernetes` comes with the extra, for those who read the Secret through the API.
FORBIDDEN = {
    "acp",
    "aiosqlite",
    "cryptography",
    "kopf",
    "kubernetes",
    "prometheus_client",
    "pydantic_settings",
    "structlog",
    "typer",
    "yaml",
}


def test_it_brings_in_neither_kubernetes_nor_anything_of_operator_and_server() -> None:
    code = "import json, sys; import tenure.backend; print(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded: list[str] = json.loads(ran.stdout)
    assert not FORBIDDEN & {name.split(".")[0] for name in loaded}
    ours = {name.split(".")[1] for name in loaded if name.startswith("tenure.")}
    assert not ours & {"operator", "control", "cluster", "telemetry", "cli", "agent"}
