"""Trajectories in, micro-batches out: groups, filters, advantages, packing, statistics. No torch."""
