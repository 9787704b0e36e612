"""The chapters of the page: each figure with what it counts and how that is defined."""
