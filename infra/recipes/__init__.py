"""Recipes (`*.toml`) and the demo."""
