"""What an embedded server can fail with."""


class EmbeddedError(Exception):
    """An embedded server cannot do what was asked. The text is one that a user can act on."""
