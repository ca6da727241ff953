"""The one server that games and players reach: HTTP and WebSocket, identity, checks, quotas, inference."""
