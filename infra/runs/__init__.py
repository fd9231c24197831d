"""Data at rest: the run folder, the journal, metrics file and checkpoint index."""
