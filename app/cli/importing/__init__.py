"""Importing files of messages: every line once, in the order of the file, however often it is interrupted."""
