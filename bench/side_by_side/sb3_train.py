"""Train CartPole with PPO, and keep the model."""

from stable_baselines3 import PPO

model = PPO("MlpPolicy", "CartPole-v1", seed=1)
model.learn(20_000)
model.save("cartpole")
