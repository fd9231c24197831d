"""Tool calls of the policy in, texts for the policy out: nothing that it writes is evaluated."""
