"""Benchmarks against peers. Each compares both in one run on one machine."""
