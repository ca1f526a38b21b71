"""Changed copies of inputs, for fuzzing: the same seed gives the same inputs."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_TOKENS: Final = (
    b"", b"\x00", b"\xff\xfe", b"null", b"true", b"-1", b"0", b"1e999999", b"NaN", b"99999999999999999999", b'"', b"{",
    b"}", b"[", b"]", b"[[[[[[[[[[[[[[[[", b":", b",", b"\n", b"\r\n", b"---\n", b"&a [*a]",
    b"!!python/object:os.system {}",
    b"\xe2\x80\xae", b"\xed\xa0\x80", b"../../etc/passwd", b"%00", b"<!ENTITY x SYSTEM 'file:///etc/passwd'>",
    b"A" * 300,
)  # fmt: skip
_MOST_BYTES: Final = 1 << 16


def mutate(corpus: Sequence[bytes], count: int, seed: int) -> Iterator[bytes]:
    """Yield the corpus, then so many changed copies."""
    rng = random.Random(seed)
    yield from corpus
    for _ in range(count):
        data = bytearray(rng.choice(corpus))
        for _ in range(rng.randint(1, 6)):
            _change(data, corpus, rng)
        yield bytes(data[:_MOST_BYTES])


def _change(data: bytearray, corpus: Sequence[bytes], rng: random.Random) -> None:
    place = rng.randrange(len(data) + 1)
    end = min(len(data), place + rng.randint(1, 24))
    match rng.randrange(7):
        case 0 if data:  # one bit
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 1:  # a token of trouble
            data[place:end] = rng.choice(_TOKENS)
        case 2:  # cut out
            del data[place:end]
        case 3:  # repeat
            data[place:place] = data[place:end] * rng.randint(1, 8)
        case 4:  # a part of another input
            other = rng.choice(corpus)
            start = rng.randrange(len(other) + 1)
            data[place:place] = other[start : start + rng.randint(1, 64)]
        case 5:  # cut off
            del data[place:]
        case _:
            data[place:place] = rng.randbytes(rng.randint(1, 8))
