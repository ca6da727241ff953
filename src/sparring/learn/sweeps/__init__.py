"""Hyperparameter sweeps with Optuna."""
