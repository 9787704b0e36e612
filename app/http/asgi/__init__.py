"""The service under an ASGI server that is not its own: uvicorn, `fastapi run`, hypercorn, test clients."""
