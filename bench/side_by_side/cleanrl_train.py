"""Keep the model of the train task: what a user adds at the end of a copy of CleanRL's ppo.py."""

# ruff: noqa: F821
if __name__ == "__main__":
    torch.save(agent.state_dict(), "cartpole.pt")
