"""The command dsv4: the program takes the place of Python, so signals and exit statuses are its own."""

import os
import pathlib
import sys

import dsv4

DRIVER = "/proc/driver/nvidia/version"


def program(prefix, driver=DRIVER):
    """The program for the CPU, or that with CUDA too, where the wheel has one and the machine NVIDIA's driver."""
    both = prefix / "bin/dsv4-cuda"
    return both if both.exists() and pathlib.Path(driver).exists() else prefix / "bin/dsv4"


def main():
    os.execv(program(dsv4.prefix()), ["dsv4", *sys.argv[1:]])


if __name__ == "__main__":
    main()
