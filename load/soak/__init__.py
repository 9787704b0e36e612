"""All features at once, without faults: no message may be lost, doubled or out of order."""
