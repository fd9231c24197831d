"""Hugging Face models with continuous batching of our own."""
