"""The client's command line: the commands of `gapless` that talk to a running server."""
