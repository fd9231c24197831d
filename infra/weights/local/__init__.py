"""The newest version as a rollout worker holds it: built from deltas, verified, on local disk."""
