"""The page: plain HTML, made here, nothing fetched from anywhere."""

from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin: 0; }
p.fact { color: #888; margin: .2rem 0 1rem; }
section { border: 1px solid var(--line); border-radius: .6rem; padding: 1rem; margin: 1rem 0; }
.state { float: right; padding: 0 .6rem; border-radius: 1rem; background: var(--soft); }
.running { background: #2a72; } .failed { background: #c332; }
table { border-collapse: collapse; margin: .6rem 0; } td, th { padding: .1rem 1rem .1rem 0; text-align: left; }
ol { list-style: none; margin: .6rem 0 0; padding: .6rem; max-height: 14rem; overflow: auto; background: var(--soft);
     border-radius: .4rem; font: 13px/1.5 ui-monospace, monospace; }
li b { display: inline-block; min-width: 11rem; font-weight: normal; color: #888; }
.ask { background: #fb02; border-radius: .4rem; padding: .6rem; margin: .6rem 0; }
form { display: inline; } input[type=text] { width: 60%; padding: .3rem; } button { padding: .3rem .8rem; }
"""

SCRIPT = """
let late = null;
const refresh = async () => {
  late = null;
  const main = document.querySelector('main');
  if (main.contains(document.activeElement) && document.activeElement.tagName === 'INPUT') return;
  const text = await (await fetch('/')).text();
  main.replaceWith(new DOMParser().parseFromString(text, 'text/html').querySelector('main'));
  document.querySelectorAll('ol').forEach(list => list.scrollTop = list.scrollHeight);
};
const events = new EventSource('/events');
events.onmessage = () => late ??= setTimeout(refresh, 200);
events.onerror = () => document.title = 'The backend is away; the agents go on';
events.onopen = () => { document.title = 'Agents'; late ??= setTimeout(refresh, 0); };
"""


def render(pid: int, server: str | None, found: int | None, sessions: list[dict[str, Any]]) -> str:
    """The whole page. ``sessions``: what ``Service.view`` returns, each with its ``lines``."""
    if server is None:
        facts = f"Backend: process {pid}. Waiting for the control server."
    else:
        facts = f"Backend: process {pid}. Control server: {escape(server)}. "
        facts += f"Sessions found at the start: {found or 0}."
    body = "".join(_session(one) for one in sessions) or "<p>No session yet.</p>"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Agents</title><style>{STYLE}</style>
<noscript><meta http-equiv="refresh" content="2"></noscript></head>
<body><h1>Agents that outlive their backend</h1>
<form method="post" action="/api/sessions">
<input type="text" name="prompt" aria-label="Prompt" value="count the words of every file and write a report">
<button>New session</button></form>
<main><p class="fact">{facts}</p>{body}</main><script>{SCRIPT}</script></body></html>
"""


def _session(one: dict[str, Any]) -> str:
    where = f"/api/sessions/{escape(one['id'], quote=True)}"
    attached = "attached" if one["attached"] else (one["over"] or "attaching")
    agent = f"agent: process {one['agent_pid']}" if one["agent_pid"] else "no agent yet"
    rows = "".join(
        f"<tr><td>turn {turn['id']}</td><td>{escape(turn['state'])}</td><td>{turn['seconds']} s</td>"
        f"<td>{escape(turn.get('stop_reason') or turn.get('code') or '')}</td></tr>"
        for turn in one["turns"]
    )
    asks = "".join(_ask(where, request) for request in one["permissions"])
    lines = "".join(
        f"<li><b>{escape(line['at'][11:19])} {escape(line['type'])}</b> {escape(line['text'])}</li>"
        for line in one["lines"]
    )
    return f"""<section><span class="state {escape(one["state"])}">{escape(one["state"])}</span>
<h2>{escape(one["id"])}</h2><p class="fact">{agent} · {escape(attached)} · {escape(one["workspace"])}</p>
<table>{rows}</table>{asks}{_buttons(where, one)}<ol>{lines}</ol></section>"""


def _ask(where: str, request: dict[str, Any]) -> str:
    buttons = "".join(
        f'<button name="option" value="{escape(option["option_id"], quote=True)}">{escape(option["name"])}</button> '
        for option in request["options"]
    )
    action = f"{where}/permissions/{escape(request['pending_id'], quote=True)}"
    return f'<div class="ask">{escape(request["title"])}? <form method="post" action="{action}">{buttons}</form></div>'


def _buttons(where: str, one: dict[str, Any]) -> str:
    if one["over"]:
        return ""
    if one["running"]:
        return f'<form method="post" action="{where}/cancel"><button>Cancel the turn</button></form>'
    return (
        f'<form method="post" action="{where}/prompt"><input type="text" name="prompt" aria-label="Prompt">'
        f'<button>Prompt</button></form> <form method="post" action="{where}/stop"><button>Stop</button></form>'
    )
