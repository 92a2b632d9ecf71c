"""The plan of an AgentProcess with ``spec.session``: an agent that runs as an instance in a control server.

Like the plan of an agent in a pod of its own it reads a frozen observation, sees one step only, and is asked again
after each deed: whatever dies between two steps leaves a state from which the next plan goes on.
"""
