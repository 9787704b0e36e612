"""Commands for durable subscriptions and what belongs to them."""
