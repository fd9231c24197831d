"""Recorded messages sent again: chosen, marked as replays, and at a chosen speed."""
