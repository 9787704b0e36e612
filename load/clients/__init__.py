"""Clients of other projects, against the real service and a proxy that cuts their connections."""
