"""What hostile clients of the WebSocket face cost those beside them."""
