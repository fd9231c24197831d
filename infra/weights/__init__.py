"""Weights on their way from trainer to engines: store, manifest, fingerprint."""
