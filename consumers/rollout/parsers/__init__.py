"""The text of a finished assistant turn in, its tool calls out: one file per call format."""
