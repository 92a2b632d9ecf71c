"""ACP agents that misbehave, each in one way; ``hostile.py KIND [ARGUMENT ...]``.

All of them answer ``initialize`` and ``session/new`` as they should (but ``mute``), and misbehave when they get their
first prompt. After that those that still can answer it with "end_turn".

======================= ===============================================================================
mute                    answers nothing at all
garbage N               N lines that are no message: text, bytes, arrays, numbers, odd ids, odd errors
long BYTES              a line of so many bytes
endless                 a line without end
deep                    arrays within arrays, 100,000 deep
closes-output           closes its standard output and lives
closes-input            closes its standard input and lives
crash CODE              some updates, half a message, and the end of the process
ignores-term            ignores SIGTERM and the end of its input
freezes                 stops itself with SIGSTOP
deaf [FILE]             reads nothing any more, and asks 50 times for this file
flood                   updates without end
floods-requests         requests without end, reading no answer
floods-stderr           standard error without end
escapes FILE            children in sessions of their own: one plain, one whose parent ended, one with an empty
                        environment, one that ignores SIGTERM; their ids are written to FILE
bomb N FILE             forks until there are N processes in sessions of their own, each ignoring SIGTERM, as fast as
                        it can; their ids are appended to FILE
last-order FILE         says "0" and "1", asks for a command that writes its id to FILE and sleeps, and ends
leaves FILE [quiet]     starts a child that ignores SIGTERM and keeps its output open (or does not), and ends; the
                        child's id is written to FILE
======================= ===============================================================================
"""

import json
import mmap
import os
import signal
import sys
import time

KIND, ARGUMENTS = sys.argv[1], sys.argv[2:]


def output(data):
    while data:
        data = data[os.write(1, data) :]


def send(message):
    output(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def say(text):
    content = {"type": "text", "text": text}
    update = {"sessionUpdate": "agent_message_chunk", "content": content}
    send({"method": "session/update", "params": {"sessionId": "hostile", "update": update}})


def forever():
    while True:
        time.sleep(3600)


def garbage():
    lines = [
        b"Welcome to my agent!",
        b"\xff\xfe\x00\x80",
        b"[1, 2, 3]",
        b'[{"jsonrpc": "2.0", "method": "session/update"}]',
        b"17",
        b"null",
        b"{}",
        b'{"jsonrpc": "2.0", "id": [], "result": {}}',
        b'{"jsonrpc": "2.0", "id": 1, "error": []}',
        b'{"jsonrpc": "2.0", "id": 1, "error": {"code": "x"}}',
        b'{"jsonrpc": "2.0", "method": 5}',
        b'{"jsonrpc": "2.0", "method": "session/update", "params": [1]}',
        b'{"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": 1, "update": {}}}',
        b'{"jsonrpc": "2.0", "id": 99, "method": {}, "params": {}}',
        b'{"secret-canary": "KANARIE-41',
    ]
    for number in range(int(ARGUMENTS[0])):
        output(lines[number % len(lines)] + b"\n")


def long():
    output(
        b'{"jsonrpc": "2.0", "method": "x", "params": "' + b"KANARIE-41" * (int(ARGUMENTS[0]) // 10) + b'"}\n'
    )


def endless():
    while True:
        output(b"x" * 65536)


def deep():
    output(b'{"jsonrpc": "2.0", "method": "x", "params": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n")


def crash():
    for number in range(3):
        say(str(number))
    output(b'{"jsonrpc": "2.0", "method": "session/upd')
    os._exit(int(ARGUMENTS[0]))


def deaf():
    for number in range(50):
        params = {"sessionId": "hostile", "path": ARGUMENTS[0] if ARGUMENTS else "/"}
        send({"id": number, "method": "fs/read_text_file", "params": params})
    forever()


def flood():
    while True:
        say("flood")


def floods_requests():
    number = 0
    while True:
        number += 1
        send({"id": number, "method": "no/such", "params": {}})


def floods_stderr():
    while True:
        os.write(2, b"KANARIE-41 " * 5957)


def child(run, clean=False):
    """A process in a session of its own."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    if clean:
        os.execve("/bin/sleep", ["sleep", "600"], {})
    run()
    while True:
        time.sleep(3600)


def escapes():
    ids = [child(forever)]
    read, write = os.pipe()

    def parent_that_ends():
        pid = child(forever)
        os.write(write, str(pid).encode())
        os._exit(0)

    middle = child(parent_that_ends)
    ids.append(int(os.read(read, 32)))
    os.waitpid(middle, 0)
    ids.append(child(None, clean=True))
    ids.append(child(lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN)))
    with open(ARGUMENTS[0], "w") as file:
        file.write(" ".join(map(str, ids)))


def bomb():
    limit = int(ARGUMENTS[0])
    counter = mmap.mmap(-1, 8)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    def note():
        file = os.open(ARGUMENTS[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(file, f"{os.getpid()}\n".encode())
        os.close(file)

    def explode():
        while True:
            count = int.from_bytes(counter[:8], "little")
            if count < limit:
                counter[:8] = (count + 1).to_bytes(8, "little")
                if os.fork() == 0:
                    os.setsid()
                    note()
            time.sleep(0.005)

    if os.fork() == 0:
        os.setsid()
        note()
        explode()
    while int.from_bytes(counter[:8], "little") < limit // 2:
        time.sleep(0.01)


def last_order():
    say("0")
    say("1")
    script = f"echo $$ > {ARGUMENTS[0]}; exec sleep 600"
    params = {"sessionId": "hostile", "command": "sh", "args": ["-c", script]}
    send({"id": 1, "method": "terminal/create", "params": params})
    os._exit(0)


def leaves():
    # Before the fork: who asks too early would be ended by it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if ARGUMENTS[1:] == ["quiet"]:
            os.closerange(0, 3)
        forever()
    with open(ARGUMENTS[0], "w") as file:
        file.write(str(pid))
    say("last words")
    os._exit(0)


def closes_output():
    os.close(1)
    forever()


def closes_input():
    os.close(0)
    forever()


def freezes():
    os.kill(os.getpid(), signal.SIGSTOP)


def misbehave():
    name = KIND.replace("-", "_")
    if name not in ("ignores_term", "mute"):
        globals()[name]()


def main():
    if KIND == "ignores-term":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if KIND == "mute":
        forever()
    buffer = b""
    while True:
        # Not through a file object: what it read ahead would be read although we are deaf.
        while b"\n" not in buffer:
            data = os.read(0, 65536)
            if not data:
                if KIND in ("ignores-term",):
                    forever()
                os._exit(0)
            buffer += data
        line, _, buffer = buffer.partition(b"\n")
        message = json.loads(line)
        method = message.get("method")
        if method == "initialize":
            send({"id": message["id"], "result": {"protocolVersion": 1, "agentCapabilities": {}}})
        elif method == "session/new":
            send({"id": message["id"], "result": {"sessionId": "hostile"}})
        elif method == "session/prompt":
            misbehave()
            send({"id": message["id"], "result": {"stopReason": "end_turn"}})


if __name__ == "__main__":
    main()
