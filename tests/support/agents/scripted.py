"""A real ACP agent for tests: each prompt's text is a script. Raw JSON lines and few imports: it starts in 20 ms.

Run it with ``tests.support.agents.scripted(...)`` (an argv) or ``scripted_command(...)`` (one command line).

Options: ``--journal FILE``; ``--no-load`` (loading a session is not offered); ``--login`` (refuses new sessions until
somebody logs in); ``--acp-version N``; ``--answer-after FILE`` (initialize is answered when the file exists);
``--linger`` (a closed standard input and SIGTERM are ignored); ``--greet`` (session/new is followed by an
``available_commands_update``).

A script is one command a line; a line that is none is echoed as ``echo: <line>``:

======================== ==============================================================================
say TEXT                 a message chunk
think TEXT               a thought chunk
updates N [SIZE [FILE]]  N message chunks "0", "1", ...; padded to SIZE characters; after each one the number of
                         chunks written is the content of FILE
plan A; B; ...           a plan with these entries
tool ID TITLE            a tool call that begins
tooldone ID              ... and is completed
update JSON              any session/update
raw TEXT                 a line of output as it is
permission TITLE         asks whether it may; says ``permission: allow|deny|cancelled``
demand TITLE             asks the same, and goes on without an answer
wait FILE                until the file exists
sleep SECONDS
write FILE TEXT          writes the file itself (append FILE TEXT: a line at its end)
read FILE                through fs/read_text_file; says ``read: ...`` or ``refused: CODE``
save FILE TEXT           through fs/write_text_file; says ``saved`` or ``refused: CODE``
run COMMAND              ``sh -c COMMAND`` through terminal/*, waits; says ``ran: EXIT OUTPUT``
start COMMAND            the same, without waiting; says ``started: TERMINAL``
release COMMAND          the same, and ends it at once
exec COMMAND             ``sh -c COMMAND`` as its own child, waits; says ``exec: EXIT``
spawn COMMAND            the same, without waiting, in a new session
environ FILE             writes its environment there, as JSON
stderr TEXT              a line of standard error
journal TEXT             a line of the journal
call METHOD JSON         any request to the client; says ``result: JSON`` or ``refused: CODE``
notify METHOD JSON       any notification to the client
fail CODE                answers the prompt with an error
stop REASON              ends the turn with this stop reason (without it: end_turn)
exit CODE                ends the process in the middle of the turn
die SIGNAL               ... by a signal, given as a number
======================== ==============================================================================

FILE is relative to the session's cwd or absolute. ``session/cancel`` ends ``wait``, ``sleep``, ``permission`` and
``run``, and the turn ends with "cancelled".

The journal has a JSON object a line, appended and flushed at once: ``{"what", "pid", "session", ...}`` with ``what``
one of ``started`` (argv), ``initialized``, ``session`` (new), ``loaded``, ``prompt`` (text), ``finished`` (text,
stop_reason), ``cancelled``, ``permission`` (outcome), ``note`` (text), ``closed`` (its input ended). Loading a
session replays from it what the session was asked and what the answer was.
"""

import json
import os
import signal
import sys
import threading
import time


class Cancelled(Exception):
    pass


class Refused(Exception):
    def __init__(self, code):
        super().__init__(code)
        self.code = code


class Options:
    def __init__(self, argv):
        self.journal = self._value(argv, "--journal")
        self.answer_after = self._value(argv, "--answer-after")
        self.version = int(self._value(argv, "--acp-version") or 1)
        self.load = "--no-load" not in argv
        self.login = "--login" in argv
        self.linger = "--linger" in argv
        self.greet = "--greet" in argv

    @staticmethod
    def _value(argv, name):
        return argv[argv.index(name) + 1] if name in argv else None


OPTIONS = Options(sys.argv[1:])
WRITING = threading.Lock()
ANSWERS = {}
ANSWERED = threading.Condition()
CANCELLED = {}
CWD = {}
NEXT = iter(range(1, 10**9))


def journal(what, **fields):
    if OPTIONS.journal:
        line = json.dumps({"what": what, "pid": os.getpid(), **fields}) + "\n"
        file = os.open(OPTIONS.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(file, line.encode())
        os.close(file)


def output(text):
    data = (text + "\n").encode()
    with WRITING:
        while data:
            data = data[os.write(1, data) :]


def send(message):
    output(json.dumps({"jsonrpc": "2.0", **message}))


def call(method, params, session=None):
    """A request to the client; its result. Raises Refused, and Cancelled when the turn is meanwhile."""
    number = next(NEXT)
    send({"id": number, "method": method, "params": params})
    with ANSWERED:
        while number not in ANSWERS:
            if session is not None and CANCELLED[session].is_set() and method != "session/request_permission":
                raise Cancelled
            ANSWERED.wait(0.1)
    answer = ANSWERS.pop(number)
    if "error" in answer:
        raise Refused(answer["error"].get("code"))
    return answer.get("result") or {}


def update(session, **fields):
    send({"method": "session/update", "params": {"sessionId": session, "update": fields}})


def say(session, text, kind="agent_message_chunk"):
    update(session, sessionUpdate=kind, content={"type": "text", "text": text})


class Turn:
    def __init__(self, session):
        self.session = session
        self.stop_reason = "end_turn"

    def path(self, name):
        return os.path.join(CWD[self.session], name)

    def run(self, text):
        for line in text.splitlines():
            if not line.strip():
                continue
            word, _, rest = line.strip().partition(" ")
            command = getattr(self, "do_" + word, None)
            if command is None:
                say(self.session, "echo: " + line)
            else:
                command(rest)
            if CANCELLED[self.session].is_set():
                raise Cancelled

    def _pause(self, until):
        while not until():
            if CANCELLED[self.session].wait(0.02):
                raise Cancelled

    def do_say(self, rest):
        say(self.session, rest)

    def do_think(self, rest):
        say(self.session, rest, "agent_thought_chunk")

    def do_updates(self, rest):
        count, size, progress = [*rest.split(), "0", ""][:3] if " " not in rest else [*rest.split(), ""][:3]
        file = os.open(self.path(progress), os.O_WRONLY | os.O_CREAT, 0o644) if progress else None
        for number in range(int(count)):
            say(self.session, str(number).ljust(int(size)))
            if file is not None:
                os.pwrite(file, str(number + 1).encode(), 0)

    def do_plan(self, rest):
        entries = [{"content": e.strip(), "priority": "medium", "status": "pending"} for e in rest.split(";")]
        update(self.session, sessionUpdate="plan", entries=entries)

    def do_tool(self, rest):
        name, _, title = rest.partition(" ")
        update(
            self.session,
            sessionUpdate="tool_call",
            toolCallId=name,
            title=title,
            kind="other",
            status="pending",
        )

    def do_tooldone(self, rest):
        update(self.session, sessionUpdate="tool_call_update", toolCallId=rest, status="completed")

    def do_update(self, rest):
        update(self.session, **json.loads(rest))

    def do_raw(self, rest):
        output(rest)

    def do_permission(self, rest):
        outcome = call("session/request_permission", self._question(rest), self.session)["outcome"]
        chosen = outcome.get("optionId") or outcome["outcome"]
        journal("permission", session=self.session, outcome=chosen)
        say(self.session, f"permission: {chosen}")

    def do_demand(self, rest):
        send({"id": next(NEXT), "method": "session/request_permission", "params": self._question(rest)})

    def _question(self, title):
        options = [
            {"optionId": "allow", "name": "Allow", "kind": "allow_once"},
            {"optionId": "deny", "name": "Deny", "kind": "reject_once"},
        ]
        tool = {"toolCallId": f"call-{next(NEXT)}", "title": title, "kind": "execute", "status": "pending"}
        return {"sessionId": self.session, "toolCall": tool, "options": options}

    def do_wait(self, rest):
        self._pause(lambda: os.path.exists(self.path(rest)))

    def do_sleep(self, rest):
        end = time.monotonic() + float(rest)
        self._pause(lambda: time.monotonic() >= end)

    def do_write(self, rest, mode="w", end=""):
        name, _, text = rest.partition(" ")
        with open(self.path(name), mode) as file:
            file.write(text + end)

    def do_append(self, rest):
        self.do_write(rest, "a", "\n")

    def _ask(self, method, params, said):
        try:
            result = call(method, {"sessionId": self.session, **params}, self.session)
        except Refused as refused:
            say(self.session, f"refused: {refused.code}")
        else:
            say(self.session, said(result))

    def do_read(self, rest):
        self._ask("fs/read_text_file", {"path": self.path(rest)}, lambda r: "read: " + r["content"])

    def do_save(self, rest):
        name, _, text = rest.partition(" ")
        self._ask("fs/write_text_file", {"path": self.path(name), "content": text}, lambda _: "saved")

    def _terminal(self, command):
        params = {
            "sessionId": self.session,
            "command": "sh",
            "args": ["-c", command],
            "cwd": CWD[self.session],
        }
        return call("terminal/create", params, self.session)["terminalId"]

    def do_run(self, rest):
        try:
            terminal = {"sessionId": self.session, "terminalId": self._terminal(rest)}
            status = call("terminal/wait_for_exit", terminal, self.session)
            text = call("terminal/output", terminal, self.session)["output"]
            call("terminal/release", terminal, self.session)
        except Refused as refused:
            say(self.session, f"refused: {refused.code}")
        else:
            say(self.session, f"ran: {status.get('exitCode')} {text}")

    def do_start(self, rest):
        say(self.session, f"started: {self._terminal(rest)}")

    def do_release(self, rest):
        terminal = {"sessionId": self.session, "terminalId": self._terminal(rest)}
        call("terminal/release", terminal, self.session)

    def do_exec(self, rest):
        import subprocess

        say(self.session, f"exec: {subprocess.run(['sh', '-c', rest], stdin=-3, stdout=2).returncode}")

    def do_spawn(self, rest):
        import subprocess

        subprocess.Popen(["sh", "-c", rest], stdin=-3, stdout=-3, stderr=-3, start_new_session=True)

    def do_environ(self, rest):
        self.do_write(f"{rest} {json.dumps(dict(os.environ))}")

    def do_stderr(self, rest):
        os.write(2, (rest + "\n").encode())

    def do_journal(self, rest):
        journal("note", session=self.session, text=rest)

    def do_call(self, rest):
        method, _, params = rest.partition(" ")
        self._ask(method, json.loads(params or "{}"), lambda r: "result: " + json.dumps(r))

    def do_notify(self, rest):
        method, _, params = rest.partition(" ")
        send({"method": method, "params": json.loads(params or "{}")})

    def do_fail(self, rest):
        raise Refused(int(rest or -32603))

    def do_stop(self, rest):
        self.stop_reason = rest

    def do_exit(self, rest):
        os._exit(int(rest or 0))

    def do_die(self, rest):
        os.kill(os.getpid(), int(rest))
        time.sleep(60)


def prompt(number, session, text):
    turn = Turn(session)
    try:
        turn.run(text)
    except Cancelled:
        turn.stop_reason = "cancelled"
    except Refused as refused:
        journal("finished", session=session, text=text, stop_reason="error")
        send({"id": number, "error": {"code": refused.code, "message": "the script said so"}})
        return
    # Before the answer: who sees the end of the turn finds it in the journal.
    journal("finished", session=session, text=text, stop_reason=turn.stop_reason)
    send({"id": number, "result": {"stopReason": turn.stop_reason}})


def replay(session):
    if OPTIONS.journal and os.path.exists(OPTIONS.journal):
        with open(OPTIONS.journal) as file:
            entries = [json.loads(line) for line in file]
        for entry in entries:
            if entry.get("session") == session and entry["what"] == "finished":
                say(session, entry["text"], "user_message_chunk")
                say(session, "finished: " + entry["stop_reason"])


def answer(message):
    number, method, params = message["id"], message["method"], message.get("params") or {}
    session = params.get("sessionId")
    if method == "initialize":
        while OPTIONS.answer_after and not os.path.exists(OPTIONS.answer_after):
            time.sleep(0.02)
        capabilities = {
            "loadSession": OPTIONS.load,
            "promptCapabilities": {"image": True, "embeddedContext": True},
        }
        info = {"name": "scripted", "version": "1"}
        journal("initialized")
        send(
            {
                "id": number,
                "result": {
                    "protocolVersion": OPTIONS.version,
                    "agentCapabilities": capabilities,
                    "agentInfo": info,
                },
            }
        )
    elif method == "session/new":
        if OPTIONS.login:
            send({"id": number, "error": {"code": -32000, "message": "log in first"}})
            return
        session = "session-" + os.urandom(8).hex()
        CANCELLED[session], CWD[session] = threading.Event(), params["cwd"]
        journal("session", session=session)
        send({"id": number, "result": {"sessionId": session}})
        if OPTIONS.greet:
            commands = [{"name": "help", "description": "Says what it can do"}]
            update(session, sessionUpdate="available_commands_update", availableCommands=commands)
    elif method == "session/load":
        CANCELLED[session], CWD[session] = threading.Event(), params["cwd"]
        replay(session)
        journal("loaded", session=session)
        send({"id": number, "result": {}})
    elif method == "session/prompt":
        text = "\n".join(block.get("text") or "" for block in params["prompt"] if block["type"] == "text")
        CANCELLED[session].clear()
        journal("prompt", session=session, text=text, blocks=params["prompt"])
        threading.Thread(target=prompt, args=(number, session, text), daemon=True).start()
    else:
        send({"id": number, "error": {"code": -32601, "message": "Method not found"}})


def main():
    if OPTIONS.linger:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    journal("started", argv=sys.argv[1:])
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "method" not in message:
            with ANSWERED:
                ANSWERS[message["id"]] = message
                ANSWERED.notify_all()
        elif "id" in message:
            answer(message)
        elif message["method"] == "session/cancel":
            session = message["params"]["sessionId"]
            journal("cancelled", session=session)
            if session in CANCELLED:
                CANCELLED[session].set()
    journal("closed")
    while OPTIONS.linger:
        time.sleep(3600)
    os._exit(0)


if __name__ == "__main__":
    main()
