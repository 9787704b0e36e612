"""The asyncio face: the client, its streams and consumers, and its connections over WebSocket."""
