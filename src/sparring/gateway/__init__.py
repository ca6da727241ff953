"""The only door: HTTP and WebSocket, identity, checks, quotas, inference."""
