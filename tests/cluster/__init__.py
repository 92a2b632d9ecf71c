"""The project's own Kubernetes: a control plane for integration tests, a whole node for end-to-end tests
and the demo.

``python -m tests.cluster`` is the command; see ``__main__``.
"""
