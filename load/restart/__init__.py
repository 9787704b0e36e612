"""Drill: dead letters across a stop of all processes. Each message must end where its routes lead."""
