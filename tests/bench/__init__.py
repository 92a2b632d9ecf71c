"""Measurements against floors of the same run: ``make bench``, ``make bench ARGS="P-1 P-9"``."""
