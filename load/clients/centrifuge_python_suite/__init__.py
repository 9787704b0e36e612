"""The own tests of PyPI `centrifuge-python`, run against the service."""
