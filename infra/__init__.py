"""Pipes: broker, weight store, tokens and text, run folders, role life cycle, observation."""
