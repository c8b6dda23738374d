"""Makes the shared fixtures known to every test."""

pytest_plugins = ["tests.support.fixtures", "tests.support.in_process"]
