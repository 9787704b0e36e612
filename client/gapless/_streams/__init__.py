"""Streams and memberships as state machines: they take bytes and give items. Nothing here waits."""
