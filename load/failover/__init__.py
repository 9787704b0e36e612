"""Drills: the primary changes under load. No id may mean two things to anybody."""
