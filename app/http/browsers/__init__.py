"""Checks every request before all other code: which pages in browsers may use this service."""
