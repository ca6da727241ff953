"""One training run: its plan and presets, its folder and checkpoints, the training loop, published models."""
