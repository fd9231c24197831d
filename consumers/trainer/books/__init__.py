"""What became of every credit and evaluation: pure state, fed by the journal's records."""
