"""A whole run on one machine: run folder, private broker, child processes, supervision."""
