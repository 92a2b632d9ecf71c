"""Running what a page tells people to type."""

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Ran:
    code: int
    output: str


@dataclass
class Shell:
    """bash in a folder."""

    folder: Path
    env: dict[str, str]

    async def run(self, command: str, within: float = 120) -> Ran:
        """Run one command as it is written, to its end; what it says on either output."""
        # Into a file: what is left in the background may keep a pipe open for ever.
        said = self.folder / "output"
        with said.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                "bash", "-c", command, cwd=self.folder, env=self.env, start_new_session=True,
                stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out,
            )  # fmt: skip
            try:
                await asyncio.wait_for(process.wait(), within)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
                raise AssertionError(f"{command} did not end:\n{said.read_text()}") from None
        assert process.returncode is not None
        return Ran(process.returncode, said.read_text())

    async def typed(self, command: str) -> str:
        """The same, and it has to succeed."""
        ran = await self.run(command)
        assert ran.code == 0, f"{command}\nended with {ran.code}:\n{ran.output}"
        return ran.output
