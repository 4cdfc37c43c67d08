"""dsv4 as a wheel: the program, its bundled model, and the C library with its headers, in the folder prefix()."""

import pathlib


def prefix():
    """The folder with bin/dsv4, include/, lib/libdsv4_kernels.so and share/."""
    return pathlib.Path(__file__).resolve().parent
