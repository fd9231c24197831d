"""A small SGLang server of our own, with the behaviour of the real one that an adapter must bear.

Its model is a Hugging Face model, so that every token can be checked. What the real server does
that one would not expect is a switch in `quirks.py`.
"""
