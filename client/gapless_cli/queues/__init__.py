"""Commands for durable subscriptions, dead letters, policies, definitions and scheduled messages."""
