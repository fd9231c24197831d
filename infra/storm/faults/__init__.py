"""The faults, one file per thing that they are done to."""
