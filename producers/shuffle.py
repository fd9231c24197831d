"""A seeded permutation without a table: the same on every machine and every library version."""

from hashlib import blake2b

_ROUNDS = 8


def permuted(position: int, length: int, *, key: str) -> int:
    """Where `position` goes in the permutation of `range(length)` that `key` names.

    A balanced Feistel network over the next even number of bits, walked until it lands inside
    (format-preserving encryption by cycle walking: Black & Rogaway, CT-RSA 2002). Memory is
    constant and any position costs the same, so a producer can start anywhere in an epoch.

    Raises:
        ValueError: `position` is not in `range(length)`.
    """
    if not 0 <= position < length:
        raise ValueError(f"position {position} is outside a dataset of {length} rows")
    half = max(1, ((length - 1).bit_length() + 1) // 2)
    value = _feistel(position, half, key.encode())
    while value >= length:
        value = _feistel(value, half, key.encode())
    return value


def _feistel(value: int, half: int, key: bytes) -> int:
    mask = (1 << half) - 1
    left, right = value >> half, value & mask
    for number in range(_ROUNDS):
        message = b"%d:%d:%s" % (number, right, key)
        mixed = int.from_bytes(blake2b(message, digest_size=8).digest(), "little")
        left, right = right, left ^ (mixed & mask)
    return (left << half) | right
