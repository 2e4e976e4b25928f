"""The native engine: what the bindings in csrc/bindings export.

Addresses are integers, as tensor.data_ptr() gives them.
"""

from collections.abc import Sequence

from typing_extensions import Buffer

class Environment:
    """Every DECENTCOMM_* variable, typed."""

    @staticmethod
    def get() -> Environment:
        """The settings of this process, read once."""
    @staticmethod
    def parse() -> Environment:
        """Read the variables anew."""
    @property
    def log_level(self) -> str:
        """DECENTCOMM_LOG."""
    @property
    def timeout_seconds(self) -> float:
        """DECENTCOMM_TIMEOUT."""
    @property
    def spin_microseconds(self) -> float:
        """DECENTCOMM_SPIN_US."""
    @property
    def instruction_set(self) -> str:
        """DECENTCOMM_ISA."""
    def describe(self) -> list[tuple[str, str, str]]:
        """Name, value in force and meaning of each variable."""

def instruction_sets() -> list[str]:
    """What kernels may use on this CPU, weakest first."""

def version() -> str:
    """Version that the engine was built as."""

def compiler() -> str:
    """Compiler that built the engine."""

class Element:
    """Element type of a kernel."""

    float32: Element
    float64: Element
    bfloat16: Element

class Incoming:
    """One bucket's mixing: target = sum of weight * source. Valid from collect to release.

    Of bfloat16 the weights add up to 0 and the sum is added to a float32 master.
    """

    def __init__(
        self, element: Element, own: int, target: int, bytes: int, sources: Sequence[tuple[int, float]]
    ) -> None: ...
    @property
    def own(self) -> int:
        """This rank's parameters before the step."""
    @property
    def target(self) -> int:
        """Where the result goes."""
    @property
    def bytes(self) -> int:
        """Size of the bucket."""
    @property
    def sources(self) -> list[tuple[int, float]]:
        """Addresses and weights."""
    @property
    def versions(self) -> list[tuple[int, int]]:
        """Rank and version of each source."""

class TensorTable:
    """The tensors of a bucket; offsets and counts in elements, `element` of the gradients."""

    def __init__(
        self, offsets: Sequence[int], counts: Sequence[int], groups: Sequence[int], element: Element
    ) -> None: ...
    def set(self, grads: Sequence[int], steps: Sequence[float], frozen: Sequence[bool]) -> None:
        """Gradients (0: none), step counts, this step included, and who is not even mixed."""

class AdamSettings:
    """Hyperparameters of one param group."""

    def __init__(
        self, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, decoupled: bool
    ) -> None: ...

class SgdSettings:
    """Hyperparameters of one param group."""

    def __init__(self, lr: float, momentum: float, dampening: float, weight_decay: float, nesterov: bool) -> None: ...

def mix_adam(
    incoming: Incoming,
    table: TensorTable,
    groups: Sequence[AdamSettings],
    mean: int,
    square: int,
    mean_grad: int,
    accumulate: int,
    masters: tuple[int, int],
    grad_scale: float,
    threads: int,
) -> bool:
    """Mix and Adam in one pass; False if a new parameter is not finite. Releases the GIL.

    `masters`, where it is and where it goes, belong to bfloat16 buckets, else they are 0.
    """

def mix_sgd(
    incoming: Incoming,
    table: TensorTable,
    groups: Sequence[SgdSettings],
    momentum: int,
    masters: tuple[int, int],
    grad_scale: float,
    threads: int,
) -> bool:
    """Mix and SGD in one pass; False if a new parameter is not finite. Releases the GIL."""

def weighted_mix(incoming: Incoming, threads: int) -> None:
    """Mix alone. Releases the GIL."""

def sum_of_squares(table: TensorTable, threads: int) -> float:
    """Of all gradients of a bucket; not finite if one of them is not. Releases the GIL."""

def stream(
    reads: Sequence[int], updates: Sequence[int], out: int, count: int, around_caches: bool, threads: int
) -> None:
    """The bandwidth limit: reads 1 to 5 fp32 buffers, adds 1 to two, writes one. For benchmarks."""

class Segment(Buffer):
    """Shared memory; a tensor over it keeps it mapped."""

    @staticmethod
    def create(bytes: int) -> Segment:
        """A new one under a random name, zero."""
    @staticmethod
    def attach(name: str, bytes: int) -> Segment:
        """Another process's."""
    @property
    def name(self) -> str:
        """Its name in the system."""
    def unlink(self) -> None:
        """Remove the name."""

class Geometry:
    """Addresses inside a rank's segment."""

    def __init__(self, buckets: Sequence[tuple[int, int]], mean_scale: int) -> None: ...
    @property
    def flat_bytes(self) -> int:
        """All buckets together."""
    @property
    def segment_bytes(self) -> int:
        """What a rank must share."""
    def slot_offset(self, version: int) -> int:
        """Where in the segment a version is."""

class StepPlan:
    """What one rank does at one step of the topology."""

    def __init__(
        self,
        own_weight: float,
        direct: Sequence[tuple[int, float]],
        means: Sequence[tuple[Sequence[int], float]],
        readers: Sequence[int],
    ) -> None: ...

class Mailbox:
    """The versioned mailbox of one rank over shared memory."""

    def __init__(
        self,
        rank: int,
        segments: Sequence[Segment | None],
        geometry: Geometry,
        element: Element,
        spin: float,
        timeout: float,
    ) -> None: ...
    def restart(self, version: int) -> None:
        """Start anew at `version`. All ranks do it between two barriers."""
    def publish(self, bucket: int, version: int) -> None:
        """The bucket is complete. Never blocks."""
    def collect(self, bucket: int, step: int, plan: StepPlan, previous: StepPlan, staleness: int = 0) -> Incoming:
        """Wait for the neighbours' version and for room for the next. Releases the GIL; raises DeadlineError."""
    def average(self, bucket: int, step: int, members: Sequence[int]) -> None:
        """Make the members' mean the next version of every member, once for all. Releases the GIL."""
    def release(self, bucket: int, step: int) -> None:
        """What the step needed has been read."""
    @property
    def waited(self) -> list[float]:
        """Seconds waited for each rank."""
