"""What goes wrong between a trainer's weights and an engine."""

import errno

from infra.roles.errors import ConfigError, WarrenError

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Error numbers."""


class StoreFailed(WarrenError):
    """The weight store did not take or give what it should: disk full, folder gone, no right."""


class ManifestUnsure(StoreFailed):
    """The connection broke while a version's manifest was written: it may be there, or not."""


class StoreUnusable(ConfigError):
    """The weight store cannot be used at all."""


class VersionExists(WarrenError):
    """This policy version already has a manifest; manifests are never replaced."""


class WeightsCorrupt(WarrenError):
    """A version is missing, damaged, or not what its manifest says."""


class CacheFailed(WarrenError):
    """A worker cannot write the weights that it was to hold: disk full, no right."""


class CacheUnusable(ConfigError):
    """The folder that `[weights] cache` names cannot be used at all."""
