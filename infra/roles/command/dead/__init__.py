"""`run.py dead list|show|requeue|drop`: what was given up, for people."""
