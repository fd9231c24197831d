"""Trajectories and failures in, credits and weights out.

Everything that arrives is journaled, then acknowledged; groups and batches are assembled from the
journal, turned into an optimizer step, and the new weights are published.
"""
