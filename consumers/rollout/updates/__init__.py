"""New weights while rollouts run: heard, prepared, swapped in; who is cut for it."""
