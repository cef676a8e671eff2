"""The bonus in other people's agents: wrappers for Stable-Baselines3 and Gymnasium."""
