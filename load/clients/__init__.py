"""Clients that nobody here wrote, against the real service and a proxy that keeps cutting them off."""
