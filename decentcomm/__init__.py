"""decentcomm: decentralized data-parallel training for PyTorch.

A worker mixes its parameters with a few neighbours' at each step, while its own forward and backward run, instead
of averaging gradients over everybody. `import decentcomm` is light: torch and the native engine load when they are
first needed.
"""

from importlib.metadata import version as _version

from decentcomm import errors, topology
from decentcomm._world import World, init, world
from decentcomm.errors import Error

__version__ = _version("decentcomm")
__all__ = ["Error", "World", "__version__", "errors", "init", "topology", "world"]
