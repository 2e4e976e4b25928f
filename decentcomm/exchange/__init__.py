"""Exchanges: how published parameters reach a neighbour. One contract, `Exchange`; `shm` for the ranks of one host."""

from decentcomm.exchange.base import Exchange
from decentcomm.exchange.collective import mean_over_ranks
from decentcomm.exchange.shm import ShmExchange

__all__ = ["Exchange", "ShmExchange", "mean_over_ranks"]
