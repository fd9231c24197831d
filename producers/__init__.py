"""Put work on a queue: credits in, tasks out. Producers hold no state; any number may run."""
