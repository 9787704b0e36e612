"""Drill: all processes are killed at once and started again, in rounds."""
