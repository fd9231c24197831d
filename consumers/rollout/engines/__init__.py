"""What turns tokens into more tokens: one file per engine, one protocol for all."""
