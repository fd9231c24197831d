"""Tokenizer, chat template and token deltas: text becomes tokens once and never again."""
