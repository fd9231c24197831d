"""A recorded rollout once more: exactly, from what was recorded, or anew, with a real engine."""
