"""Webhooks: each posts one signed delivery to an address that was checked before."""
