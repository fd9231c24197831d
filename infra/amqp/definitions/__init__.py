"""What an administrator loads into a broker: the run's objects, its policies, a user who looks."""
