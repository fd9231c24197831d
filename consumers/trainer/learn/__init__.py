"""Micro-batches in, updated weights out: policy, objective, optimizer step, checkpoints."""
