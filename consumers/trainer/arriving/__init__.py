"""Trajectories, failures and evaluations in: screened, journaled, then acknowledged."""
