"""Let the model that the train task has kept play one episode, in a loop of one's own."""

import gymnasium

import sparring

model, env = sparring.load("champion:gym:CartPole-v1"), gymnasium.make("CartPole-v1")
observation, info = env.reset(seed=1)
ended, earned = False, 0.0
while not ended:
    action = model.predict(observation)
    observation, reward, terminated, truncated, info = env.step(action)
    ended, earned = terminated or truncated, earned + reward
print(earned)
