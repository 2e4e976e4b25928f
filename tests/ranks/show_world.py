"""A rank that prints its world; the arguments say what else it does with torch.distributed."""

import json
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import torch.distributed as dist

import decentcomm as dc

if "--only-rank-0" in sys.argv:
    if "RANK" not in os.environ:
        from mpi4py import MPI as MPI  # MPI_Init waits for all ranks, and no deadline can be put on it
    if os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "0":
        dc.init(timeout=2)
    time.sleep(60)  # never comes; the launcher ends it when rank 0 has failed

if "--process-group" in sys.argv:
    dist.init_process_group("gloo")
if "--process-group-by-file" in sys.argv:
    meeting = Path(tempfile.gettempdir()) / f"decentcomm-test-{os.environ['TORCHELASTIC_RUN_ID']}"
    del os.environ["MASTER_ADDR"]
    place = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    dist.init_process_group("gloo", init_method=f"file://{meeting}", **place)

first = dc.init()
assert dc.init() is first is dc.world()
ring = dc.topology.make("ring")

if "--process-group-after" in sys.argv:
    dist.init_process_group("gloo")
print(json.dumps({**asdict(first), "ring": ring.size, "boxes": len(ring.layout)}), flush=True)
if dist.is_initialized():
    dist.barrier()
    dist.destroy_process_group()
