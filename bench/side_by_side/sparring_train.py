"""Train CartPole with PPO, and keep the model: it becomes the champion of its game."""

import sparring

sparring.train("gym:CartPole-v1", steps=20_000, seed=1)
