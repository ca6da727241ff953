"""Evaluate the model that the train task has kept."""

import sparring

result = sparring.evaluate("champion:gym:CartPole-v1", episodes=100)
print(result.mean, result.sd)
