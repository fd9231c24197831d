"""A run folder in, what the trainer knows out: for people, from outside, without a broker."""
