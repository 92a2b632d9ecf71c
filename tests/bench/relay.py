"""The floor of P-10: hosts the same agents and passes every line of theirs to a WebSocket; it decides nothing.

``python -m tests.bench.relay CERTIFICATE KEY COUNT COMMAND...`` prints its port. ``/N`` is the stream of agent N; what
is sent there is the text of its one prompt. ``POST /claim`` answers something.
"""

import asyncio
import json
import ssl
import sys

from aiohttp import WSMsgType, web

LINE = 4 * 1024 * 1024


def request(number: int, method: str, **params: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode() + b"\n"


class Agent:
    """One agent process, with a session."""

    def __init__(self, process: asyncio.subprocess.Process, session: str) -> None:
        self.process = process
        self.session = session

    @classmethod
    async def start(cls, command: list[str]) -> "Agent":
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=LINE)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(request(1, "initialize", protocolVersion=1, clientCapabilities={}))
        await process.stdout.readline()
        process.stdin.write(request(2, "session/new", cwd="/tmp", mcpServers=[]))
        answer = json.loads(await process.stdout.readline())
        return cls(process, answer["result"]["sessionId"])

    async def relay(self, socket: web.WebSocketResponse) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        first = await socket.receive()
        if first.type is WSMsgType.TEXT:
            prompt = [{"type": "text", "text": first.data}]
            self.process.stdin.write(request(3, "session/prompt", sessionId=self.session, prompt=prompt))
        async for line in self.process.stdout:
            await socket.send_str(line.decode())


async def main() -> None:
    certificate, key, count, *command = sys.argv[1:]
    agents = [await Agent.start(command) for _ in range(int(count))]
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def claim(_: web.Request) -> web.Response:
        return web.json_response({"status": "claimed"})

    async def stream(asked: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(compress=False)
        await socket.prepare(asked)
        await agents[int(asked.match_info["number"])].relay(socket)
        return socket

    app = web.Application()
    app.router.add_get("/{number}", stream)
    app.router.add_post("/claim", claim)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    # Until whoever started it closes its input.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for agent in agents:
        agent.process.kill()
        await agent.process.wait()
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
