"""Users and environments that answer a finished assistant turn."""
