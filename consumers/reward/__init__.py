"""Rollouts in, trajectories out: scored in processes of their own that can be killed.

A rollout that cannot be scored becomes a `Failure`, never a reward of 0.
"""
