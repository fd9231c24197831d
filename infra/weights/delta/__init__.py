"""Lossless deltas between two versions of the weights.

The elements of all tensors, in order of their names, are cut into chunks of equal length. In each
chunk the positions of the elements that changed are coded as gaps, their values as differences of
the bit patterns or as new bit patterns, and both are compressed with zstandard. Tensors are taken
as unsigned integers: what a bit pattern means is never asked, so NaN, infinities and -0.0 are as
exact as anything else.

    body    = magic (8 bytes) · XXH3-128 of what follows up to the chunks (16) · length of the
              compressed header (4, little-endian) · compressed header · chunks
    header  = JSON: per tensor name, dtype, shape, XXH3-128 of its new bytes and, per chunk it lies
              in, (kind, number of changed elements, number of gap bytes); stored size of each chunk
    chunk   = one zstandard frame: gap bytes of all pieces, then byte 0 of all values, byte 1, ...

Kinds of pieces: `same`: nothing is stored. `step`: new - old, modulo 2^bits, zigzag coded.
`absolute`: the new value. `raw`: the new values of all elements, and no gaps.
"""
