"""Pages in a real Chromium: foreign ones must be able to do nothing, and an allowed one everything."""
