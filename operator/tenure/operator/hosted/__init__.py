"""Agents hosted by control servers: passes over AgentProcesses with ``spec.session``.

``tenure.plan.hosted`` decides, this looks and acts. Where a ControlServer has no backend the operator drives its
agents, too; it never imports the backend library, which is for other programs.
"""
