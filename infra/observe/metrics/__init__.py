"""What is measured: one catalogue of all names, and the Prometheus endpoint that serves them."""
