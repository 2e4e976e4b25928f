"""GPU kernels written in Triton. Installed as decentcomm.kernels; importing it must not need a GPU."""
