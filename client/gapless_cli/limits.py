"""The service's limits that the commands stay within, so that a request is not refused for its size."""

MAX_PAGE = 1000
"""The most items of one answer of a list or a history."""
MAX_ID = 2**53 - 1
MAX_LAST = 1000
MAX_PREFETCH = 1000
MAX_MESSAGES = 1000
"""The most messages of one publish."""
