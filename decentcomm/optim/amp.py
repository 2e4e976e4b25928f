"""What a torch.amp.GradScaler and an optimizer that unscales by itself say to each other."""

from __future__ import annotations

import sys


class Unscales:
    """Mixin: GradScaler calls step() also if it found infinities, and leaves the unscaling to us."""

    found_inf: object
    grad_scale: object

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # Lightning takes this for "cannot be clipped", which is not so: told no, it unscales before it clips, and the
        # scaler then tells us that there is nothing left to unscale.
        asking = sys._getframe(1).f_globals.get("__name__", "")
        return not asking.startswith(("lightning.", "pytorch_lightning."))

    def _scaling(self) -> tuple[bool | None, float]:
        """Did the scaler that calls step() find infinities (None: none calls), and what to multiply gradients with."""
        found_inf, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        found = None if found_inf is None else float(found_inf) != 0
        return found, 1.0 if scale is None else 1.0 / float(scale)
