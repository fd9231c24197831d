"""Figures, not verdicts: `make bench` prints them; nothing here fails for being slow."""
