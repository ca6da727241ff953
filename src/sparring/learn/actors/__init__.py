"""Processes that play for a learner: their shared memory, their weights, their experience, and who keeps them alive."""
