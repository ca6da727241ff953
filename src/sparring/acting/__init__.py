"""Playing games with models: actors, rollouts, opponents, evaluation. Needs no torch."""
