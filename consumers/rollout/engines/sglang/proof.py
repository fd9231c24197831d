"""What a server holds, measured by the checksums that it takes of its parameters.

Where they can be computed from the tensors that were to be loaded, they prove every byte. Where
they cannot (a server that is split over devices, parameters that SGLang lays out in another way, a
kind of hardware that hashes in another way), they prove that two states are the same or are not.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

Checksums = Mapping[str, str]
"""By SGLang's names, hexadecimal."""


@dataclass
class Proof:
    """Which state the server is in, as far as SGLang tells.

    Args:
        exact: Whether checksums are computed here.
        certain: Whether it is known that the server computes them in that way. If not, its first
            answer decides: one in which no checksum is the computed one is of another kind.
    """

    exact: bool
    certain: bool = True
    _names: frozenset[str] = frozenset()
    _states: dict[str, str] = field(default_factory=dict)

    def problem(self, fingerprint: str, expected: Checksums, found: Checksums) -> str:
        """Compare what the server holds with what it must hold.

        Args:
            fingerprint: Of the weights that it must hold.
            expected: Of those that can be computed.
            found: What the server tells.

        Returns:
            What is wrong, or nothing.
        """
        if not found:
            return "it tells no checksums"
        self._names = self._names or frozenset(found)
        if odd := sorted(self._names ^ found.keys()):
            return f"it tells of other tensors than before: {', '.join(odd[:3])}"
        both = expected.keys() & found
        wrong = sorted(name for name in both if expected[name] != found[name])
        if not self.certain:
            self.exact, self.certain = len(wrong) < len(both), True
        if self.exact and wrong:
            return f"{len(wrong)} of {len(found)} tensors have other values, first {wrong[0]}"
        state = " ".join(f"{name}={found[name]}" for name in sorted(found))
        state = hashlib.sha256(state.encode()).hexdigest()
        for other, theirs in self._states.items():
            if (state == theirs) != (other == fingerprint):
                how = "the same as" if state == theirs else "others than"
                return f"its checksums are {how} those of weights {other[:12]} were"
        self._states[fingerprint] = state
        return ""

    def coverage(self, expected: Checksums, found: Checksums) -> str:
        """How much is proved, for people."""
        num_proved = len(expected.keys() & found.keys()) if self.exact else 0
        if num_proved == len(found):
            return f"the bytes of all {num_proved} tensors are proved by checksums"
        return (
            f"the bytes of {num_proved} of {len(found)} tensors are proved by checksums, of the "
            "others only that they change when they must"
        )
