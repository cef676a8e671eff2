"""Environments: the labyrinth and its limits, and the adapters for other people's environments."""
