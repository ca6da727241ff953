"""Calls between processes: any class becomes a service by decorating methods, and one line calls it."""
