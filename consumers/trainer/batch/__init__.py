"""Trajectories in, micro-batches out: groups, filters, advantages, packing, statistics.

Nothing here needs torch.
"""
