"""Durable subscriptions against job queues on the same Postgres, and what they leave behind there."""
