"""A recipe in: production's faults done to it from outside. Out: `storm.json`, what it survived."""
