"""What watching a run costs it: `python -m tests.benchmarks observing`.

The demo's recipe, in pairs that take turns on this machine: without a recording, endpoints and
trackers; and with them, a live `run.py monitor` on a terminal, and everything that Prometheus would
scrape (every endpoint and RabbitMQ's, every five seconds). Heartbeats are sent in both: the ledger
needs them.
"""
