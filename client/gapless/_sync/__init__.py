"""The blocking face: the client, its streams and consumers."""
