"""What weight updates of a real model weigh as deltas, and how fast they are made and applied."""
