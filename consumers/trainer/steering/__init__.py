"""The trainer's word to others: credits, run state, and the fence that keeps it the only one."""
