"""The loops that carry decisions out, over the ports: publishing, live reading, maintenance."""
