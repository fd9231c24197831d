"""The I/O thread: three supervised pika connections, and what crosses between threads."""
