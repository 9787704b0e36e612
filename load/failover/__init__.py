"""Drills: the primary changes under load. No id may ever stand for two messages."""
