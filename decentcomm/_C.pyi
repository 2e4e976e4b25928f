"""The native engine: what the bindings in csrc/bindings export."""

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
    def describe(self) -> list[tuple[str, str, str]]:
        """Name, value in force and meaning of each variable."""

def instruction_sets() -> list[str]:
    """What kernels may use on this CPU, weakest first."""

def version() -> str:
    """Version that the engine was built as."""

def compiler() -> str:
    """Compiler that built the engine."""
