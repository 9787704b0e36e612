"""The loops that carry out decisions through the ports: publishing, live reading, maintenance."""
