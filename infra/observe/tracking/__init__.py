"""Where the trainer's lines go: `metrics.jsonl`, the metrics endpoint, trackers."""
