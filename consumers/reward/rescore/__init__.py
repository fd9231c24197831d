"""Recorded rollouts scored anew, beside what they were given."""
