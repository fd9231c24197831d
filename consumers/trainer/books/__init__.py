"""What became of every credit and evaluation: state fed by the journal's records alone, and who
asks again for what is lost."""
