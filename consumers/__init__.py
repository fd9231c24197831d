"""Roles that take work from a queue: rollout, reward, trainer. They never import each other."""
