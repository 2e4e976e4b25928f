"""A rank that prints its world; with an argument, inside a process group that it initialised."""

import json
import sys
from dataclasses import asdict

import decentcomm as dc

if "--process-group" in sys.argv:
    import torch.distributed as dist

    dist.init_process_group("gloo")

first = dc.init()
assert dc.init() is first is dc.world()
ring = dc.topology.make("ring")
print(json.dumps({**asdict(first), "ring": ring.size, "boxes": len(ring.layout)}), flush=True)

if "--process-group" in sys.argv:
    dist.destroy_process_group()
