"""decentcomm: decentralized data-parallel training for PyTorch.

A worker mixes its parameters with a few neighbours' at each step, while its own forward and backward run, instead
of averaging gradients over everybody. `import decentcomm` is light: torch and the native engine load when they are
first needed.
"""

from importlib import import_module as _import
from importlib.metadata import version as _version
from typing import TYPE_CHECKING
from typing import Any as _Any

from decentcomm import errors, topology
from decentcomm._world import World, init, world
from decentcomm.errors import Error

__version__ = _version("decentcomm")
__all__ = [
    "Error",
    "World",
    "__version__",
    "checkpoint",
    "errors",
    "exchange",
    "init",
    "monitor",
    "optim",
    "topology",
    "world",
]

if TYPE_CHECKING:
    from decentcomm import checkpoint, exchange, monitor, optim


def __getattr__(name: str) -> _Any:
    """Load the parts that need torch when they are first used."""
    if name in ("checkpoint", "exchange", "monitor", "optim"):
        return _import(f"decentcomm.{name}")
    raise AttributeError(f"module 'decentcomm' has no attribute {name!r}")
