"""Agents as processes that speak ACP over their standard input and output.

Everything that an agent does wrong (garbage, endless lines, a flood, a crash, a fork bomb) is the end of that
agent at most, and costs bounded memory; nothing that it says reaches a log.
"""

from tenure.control.acp.contract import AgentExit, AgentFailed, Host, Launch
from tenure.control.acp.leftovers import end_leftovers
from tenure.control.acp.link import Link

__all__ = ["AgentExit", "AgentFailed", "Host", "Launch", "Link", "end_leftovers"]
