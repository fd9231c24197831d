"""vLLM, in this process."""
