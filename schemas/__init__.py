"""What crosses a queue or lies in a run folder, and the run configuration.

Every model here is frozen and refuses unknown keys. The package imports nothing of the project.
"""
