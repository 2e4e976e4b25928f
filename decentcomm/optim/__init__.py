"""Decentralized optimizers: each a torch.optim.Optimizer, one line to change in a training script."""

from decentcomm.optim.adam import DAdam, DAdamW
from decentcomm.optim.allreduce import AllReduce
from decentcomm.optim.base import Decentralized
from decentcomm.optim.joining import join
from decentcomm.optim.sgd import DSGD

__all__ = ["DSGD", "AllReduce", "DAdam", "DAdamW", "Decentralized", "join"]
