"""When a version is published whole, not only as what changed since the one before."""

from schemas.control import WeightsPublished


class Keyframes:
    """Tells whether the next version is to be a keyframe.

    A worker that keeps refusing what is published whole has a fault of its own: each time that a
    keyframe did not help, the next one on its behalf waits twice as many versions.

    Args:
        every: Versions from one keyframe to the next.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._newest = -1
        self._gap = 1

    def due(self, version: int, refused: int) -> bool:
        """Whether this version, about to be published, is one: the first that this trainer
        publishes, the regular ones, and when a worker cannot go on from what it was given.

        Args:
            version: Its number.
            refused: The newest version that some rollout worker says it cannot serve; -1 for none.
        """
        since = version - self._newest
        if self._newest < 0 or since >= self._every:
            return True
        if refused < self._newest:
            self._gap = 1
            return False
        if since < self._gap:
            return False
        self._gap = min(self._every, 2 * self._gap)
        return True

    @property
    def newest(self) -> int | None:
        """The newest one that is out; None before the first."""
        return self._newest if self._newest >= 0 else None

    def published(self, manifest: WeightsPublished) -> None:
        """It is out."""
        if manifest.full:
            self._newest = manifest.version
