"""Tasks and snapshots in, rollouts out.

Takes from `cancel_queue`, `eval_prompts` and `prompts`, in this order; publishes to `rollouts`,
and what a weight update or a departure cuts, back to `cancel_queue`.
"""
