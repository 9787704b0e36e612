"""The shapes on the wire: strict JSON and publish bodies in, messages and CloudEvents out."""
