"""Everything at once, without a fault: nothing may be lost, doubled or out of order."""
