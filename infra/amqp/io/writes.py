"""One system call for many frames.

pika sends each frame by itself, and only after its event loop has found the socket writable. For
small messages that costs more than encoding them. Everything here is guarded: on another pika, or
over TLS, pika's own way is taken.
"""

from typing import Any

_JOIN_BELOW_BYTES = 256 * 1024


def flush(connection: Any) -> None:
    """Send now what pika has buffered, small frames together. I/O thread only."""
    transport = getattr(connection, "_transport", None)
    if type(transport).__name__ != "_AsyncPlaintextTransport":
        return
    buffers = getattr(transport, "_tx_buffers", None)
    send = getattr(transport, "_on_socket_writable", None)
    num_bytes = getattr(transport, "_tx_buffered_byte_count", None)
    if not buffers or send is None or num_bytes is None:
        return
    if len(buffers) > 1 and num_bytes <= _JOIN_BELOW_BYTES:
        joined = b"".join(buffers)
        buffers.clear()
        buffers.append(joined)
    send()
