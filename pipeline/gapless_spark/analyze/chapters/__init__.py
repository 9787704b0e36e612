"""What the page says, chapter by chapter: each figure with what it counts and how it is defined."""
