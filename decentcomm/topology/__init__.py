"""Communication graphs: who mixes with whom, with which weight, at which step.

Needs neither torch nor a process group.
"""

from decentcomm.errors import TopologyError
from decentcomm.topology.base import Topology
from decentcomm.topology.edge import Edge
from decentcomm.topology.registry import make, names

__all__ = ["Edge", "Topology", "TopologyError", "make", "names"]
