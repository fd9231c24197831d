"""What people see: logs, waiting lines, metrics, the summary of a run."""
