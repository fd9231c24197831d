"""What every role shares: life cycle, settings, errors, registries, launching and supervision."""
