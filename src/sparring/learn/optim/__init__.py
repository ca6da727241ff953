"""Optimisers on one flat parameter buffer."""
