"""Trackers that come along, each in the module of its name."""
