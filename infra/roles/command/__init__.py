"""The command line: its words, the listing of recipe keys, and the check before a run."""
