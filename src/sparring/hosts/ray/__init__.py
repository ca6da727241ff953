"""Services as actors of a Ray cluster."""
