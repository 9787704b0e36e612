"""What a page in a browser may do here: checked of every request before anything else looks at it."""
