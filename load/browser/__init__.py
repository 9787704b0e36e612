"""Foreign pages in a real Chromium, which must be able to do nothing; an allowed one, which may do all."""
