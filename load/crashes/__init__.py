"""Everything killed at once and started at once, round after round."""
