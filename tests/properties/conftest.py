"""Profiles of hypothesis: ``ci`` is what every run gets; ``search`` looks longer, ``quick`` does not shrink."""

import os

from hypothesis import HealthCheck, Phase, settings

_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
settings.register_profile("ci", max_examples=60, derandomize=True, database=None, **_COMMON)
settings.register_profile("search", max_examples=1500, **_COMMON)
settings.register_profile("quick", max_examples=200, phases=[Phase.generate], database=None, **_COMMON)
settings.load_profile(os.environ.get("TENURE_HYPOTHESIS", "ci"))
