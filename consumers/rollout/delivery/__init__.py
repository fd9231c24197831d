"""Messages in and out: what is taken from the queues, what goes back, what is given up."""
