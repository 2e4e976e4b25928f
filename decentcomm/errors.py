"""Every exception that decentcomm raises on purpose.

Each one says what was wrong and what to do; all derive from `Error`, so that a training script can catch them as one.
"""


class Error(Exception):
    """Base of all decentcomm errors."""


class TopologyError(Error, ValueError):
    """A topology was asked for something that it cannot serve; the message names the nearest value that works."""


class WorldError(Error, RuntimeError):
    """The launcher's environment is missing, half set or contradictory; the message names the variable."""


class MissingDependencyError(Error, ImportError):
    """An optional package is not installed; the message names the extra that brings it."""


class ConfigError(Error, ValueError):
    """A DECENTCOMM_* variable holds something that it cannot; the message names it."""


class DeadlineError(Error, TimeoutError):
    """A wait for another rank passed its deadline; the message names rank, step, bucket and who was waited for."""


class DisagreementError(Error, ValueError):
    """Ranks were given different models or settings; the message names the parameter and the ranks."""


class UnsupportedError(Error, TypeError):
    """A parameter that decentcomm cannot hold; the message names it."""


class NonFiniteError(Error):
    """A gradient is NaN or infinite."""


class CheckpointError(Error):
    """A checkpoint could not be written or read; the one before is whole."""
