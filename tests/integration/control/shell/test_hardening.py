"""What keeps secrets from the neighbours, and the process table clean: on real processes."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.agents import scripted_command
from tests.support.control import asking, running_server

from tenure.control import hardening


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


SPY = """
import ctypes, os
from tenure.control.hardening import harden
os.environ["CANARY"] = "1"
libc = ctypes.CDLL(None)
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
# As a program is that was started by this user: a change of user has hidden it already.
libc.prctl(4, 1, 0, 0, 0)

def spied():
    reader, writer = os.pipe()
    me = os.getpid()
    if os.fork() == 0:
        try:
            open(f"/proc/{me}/environ", "rb").read(1)
            open(f"/proc/{me}/mem", "rb").close()
            os.listdir(f"/proc/{me}/fd")
            os.write(writer, b"seen ")
        except PermissionError:
            os.write(writer, b"hidden ")
        os._exit(0)
    os.wait()
    return os.read(reader, 20).decode()

before = spied()
harden()
print(before, spied(), libc.prctl(3, 0, 0, 0, 0))
"""


def test_a_neighbour_of_the_same_user_sees_neither_memory_nor_environment_nor_files() -> None:
    assert run(SPY).split() == ["seen", "hidden", "0"]


ORPHANS = """
import asyncio, os
from tenure.control.hardening import harden, reap_orphans
harden()

def zombies():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] == "Z" and fields[1] == str(os.getpid()):
            found.append(pid)
    return found

async def main():
    # Children of a shell that does not wait for them become ours, and die.
    shell = await asyncio.create_subprocess_exec("sh", "-c", "for i in 1 2 3; do (exit 0) & done; exec sleep 0.2 &")
    await shell.wait()
    own = [await asyncio.create_subprocess_exec("sh", "-c", f"exit {code}") for code in range(20)]
    reaper = asyncio.create_task(reap_orphans(0.1))
    codes = await asyncio.gather(*(child.wait() for child in own))
    for _ in range(200):
        await asyncio.sleep(0.05)
        if not zombies():
            break
    reaper.cancel()
    print(codes == list(range(20)), zombies())

asyncio.run(main())
"""


def test_orphans_are_reaped_and_the_exit_codes_of_our_own_children_are_not_taken() -> None:
    assert run(ORPHANS) == "True []"


LOOKS = """
import os, subprocess
from tenure.control.hardening import Orphans

def dead(code):
    child = subprocess.Popen(["sh", "-c", f"exit {code}"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    return child

first = dead(7)
orphans = Orphans()
orphans.look()
codes = [first.wait()]
second = dead(8)
orphans.look()
orphans.look()
try:
    os.waitpid(second.pid, os.WNOHANG)
except ChildProcessError:
    codes.append("reaped")
second.wait()
print(*codes)
"""


def test_who_is_slow_to_wait_for_a_child_still_gets_its_code() -> None:
    assert run(LOOKS) == "7 reaped"


SURVIVORS = """
import asyncio, os, subprocess
from tenure.control.hardening import harden, kill_descendants
harden()
# Three generations, each in a session of its own, deaf to everything but SIGKILL.
subprocess.run(["sh", "-c", "trap '' TERM HUP; setsid sh -c 'setsid sleep 60 & sleep 60' & setsid sleep 60 &"])
import time
time.sleep(0.3)
asyncio.run(kill_descendants(10))
living = []
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    except OSError:
        continue
    if fields[1] == str(os.getpid()) and fields[0] != "Z":
        living.append(pid)
print(living)
"""


def test_nothing_below_a_server_outlives_its_end() -> None:
    assert run(SURVIVORS) == "[]"


def test_our_own_variables_are_taken_out_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setenv("TENURE_SERVER_NONCE_FILE", "/x")
    monkeypatch.setenv("TENUREX", "kept")
    assert "TENURE_SERVER_NONCE_FILE" in hardening.scrub_environment()
    assert not [name for name in os.environ if name.startswith("TENURE_")]
    assert os.environ["TENUREX"] == "kept"


async def test_an_agent_inherits_neither_our_variables_nor_our_open_files() -> None:
    env = {"TENURE_SERVER_LOG_LEVEL": "INFO", "TENURE_CANARY": "1", "FOR_AGENTS": "yes"}
    async with running_server(env=env) as server, asking(server) as client:
        await client.create(await client.handshake(), scripted_command())
        (agent,) = server.descendants()
        inherited = agent.environ()
        assert inherited["FOR_AGENTS"] == "yes"
        assert not [name for name in inherited if name.startswith("TENURE_SERVER_")]
        assert "TENURE_CANARY" not in inherited
        open_files = [link.readlink() for link in Path(f"/proc/{agent.pid}/fd").iterdir()]
        assert not [file for file in open_files if str(server.home) in str(file)]
        assert len(open_files) <= 4
