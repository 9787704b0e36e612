"""Webhooks: one delivery, signed, posted to an address that was checked first."""
