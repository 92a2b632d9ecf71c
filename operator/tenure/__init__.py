"""Tenure: an operator that stops AI agents without losing their work."""

__version__ = "0.1.0"
