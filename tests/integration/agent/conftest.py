"""Fixtures of the agent tests: a real PostgreSQL."""

from tests.support.postgres import database_url, own_postgres, postgres_server  # noqa: F401 - fixtures
