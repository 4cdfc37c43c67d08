"""Thresholds per layer and head of XAttention, from queries and keys of a model.

    python -m dsv4_kernels.xattn_calibrate DUMP.. --out thresholds.json --density 0.2 [--report DIR]

DUMP is a safetensors file of one prompt with layers.N.q [tokens, h_q, d] and layers.N.k [tokens, h_kv, d] (after RoPE;
BF16, F16 or F32) for every layer N from 0. Several files are several prompts.

Every head gets the smallest threshold whose blocks hold at least 1 - error of the attention mass of all prompts. The
error is given (--error), or is the one at which the mean density of all heads is --density. --report writes report.md
and SVG plots: density by layer, recall against density beside the best possible order of blocks, density by length.

thresholds_of(FILE).arguments(layer) gives the keyword arguments of xattn_prefill(). Computes with torch on a GPU if
there is one, otherwise with NumPy (an hour for a model's worth of 8K prompts).
"""

import argparse
import pathlib
import sys

import numpy

from . import _svg
from ._safetensors import Dump
from .xattn import xattn_estimate
from .xattn_mass import block_mass, critical_thresholds, curves
from .xattn_thresholds import write_thresholds

POINTS = 101  # of a plotted curve


def device_array(array):
    """On a GPU if torch has one."""
    try:
        import torch
    except ImportError:
        return array
    return torch.from_numpy(numpy.array(array)).cuda() if torch.cuda.is_available() else array


def _num_layers(dumps):
    counts = set()
    for dump in dumps:
        n = 0
        while f"layers.{n}.q" in dump and f"layers.{n}.k" in dump:
            n += 1
        if n == 0:
            raise ValueError(f"{dump.path}: no layers.0.q and layers.0.k")
        counts.add(n)
    if len(counts) > 1:
        raise ValueError(f"dumps have {sorted(counts)} layers")
    return counts.pop()


def layer_prompt(q, k, stride, block):
    """critical thresholds, critical thresholds of the true mass, true mass; each [h, blocks, blocks]."""
    rows = lambda x: x.swapaxes(0, 1)[None]
    scores, _ = xattn_estimate(rows(q), rows(k), block, stride, threshold=1.0)
    mass = block_mass(q, k, block)
    return critical_thresholds(scores[0]), critical_thresholds(mass), mass


class Layer:
    """Curves of a layer's heads by XAttention's scores, and by the true mass."""

    def __init__(self, dumps, number, stride, block):
        prompts = []
        self.lengths = []
        for dump in dumps:
            q, k = (device_array(numpy.asarray(dump[f"layers.{number}.{x}"], numpy.float32)) for x in "qk")
            prompts.append(layer_prompt(q, k, stride, block))
            self.lengths.append(q.shape[0])
        self.curves = curves([(p[0], p[2]) for p in prompts])
        self.best = curves([(p[1], p[2]) for p in prompts])
        self.by_prompt = [curves([(p[0], p[2])]) for p in prompts]

    def thresholds(self, error):
        return [curve.threshold_for(1 - error) for curve in self.curves]

    def at(self, error):
        """[heads, 2] density and recall."""
        return numpy.array([c.at(t) for c, t in zip(self.curves, self.thresholds(error))])


def error_for(layers, density):
    """The error at which the mean density of all heads is `density`, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        mean = numpy.mean([layer.at(middle)[:, 0].mean() for layer in layers])
        low, high = (middle, high) if mean > density else (low, middle)
    return high


def _mean_curve(all_curves):
    """Mean recall of all heads at densities from 0 to 1."""
    densities = numpy.linspace(0, 1, POINTS)
    recall = numpy.mean([numpy.interp(densities, c.density, c.recall) for c in all_curves], 0)
    return list(zip(densities, recall))


def write_report(folder, layers, error, names):
    folder.mkdir(parents=True, exist_ok=True)
    found = [layer.at(error) for layer in layers]
    numbers = range(len(layers))
    _svg.line_plot(folder / "density_by_layer.svg", "Density by layer", "layer", "density", {
        name: [(i, float(pick(found[i][:, 0]))) for i in numbers]
        for name, pick in (("densest head", numpy.max), ("mean of heads", numpy.mean), ("sparsest head", numpy.min))
    }, points=True)
    _svg.line_plot(folder / "recall_by_density.svg", "Attention mass in the listed blocks", "density", "recall", {
        "true mass": _mean_curve([c for layer in layers for c in layer.best]),
        "XAttention": _mean_curve([c for layer in layers for c in layer.curves])})
    lines = [f"# XAttention thresholds: error {error:.4g}", "", f"Prompts: {', '.join(names)}.", "",
             "| layer | density: mean | least | most | recall: mean | least | threshold: mean |",
             "|---|---|---|---|---|---|---|"]
    for i in numbers:
        density, recall = found[i][:, 0], found[i][:, 1]
        lines.append(f"| {i} | {density.mean():.3f} | {density.min():.3f} | {density.max():.3f} | {recall.mean():.4f} | "
                     f"{recall.min():.4f} | {numpy.mean(layers[i].thresholds(error)):.3f} |")
    lines += ["", "![](density_by_layer.svg)", "![](recall_by_density.svg)", ""]
    lengths = layers[0].lengths
    by_length = sorted(
        (n, float(numpy.mean([c.at(t)[0] for layer in layers
                              for c, t in zip(layer.by_prompt[i], layer.thresholds(error))])))
        for i, n in enumerate(lengths))
    lines += ["| tokens | density |", "|---|---|", *(f"| {n} | {density:.3f} |" for n, density in by_length), ""]
    if len(set(lengths)) > 1:
        _svg.line_plot(folder / "density_by_length.svg", "Density by length", "tokens", "density",
                       {"mean of heads and layers": by_length}, points=True)
        lines += ["![](density_by_length.svg)", ""]
    (folder / "report.md").write_text("\n".join(lines))


def _arguments(argv):
    parser = argparse.ArgumentParser(prog="xattn_calibrate", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dumps", nargs="+", metavar="DUMP")
    parser.add_argument("--out", required=True)
    parser.add_argument("--stride", type=int, default=16)
    parser.add_argument("--block", type=int, default=128)
    parser.add_argument("--dense-layers", default="", help="for example 0,1: not approximated")
    parser.add_argument("--report", type=pathlib.Path)
    goal = parser.add_mutually_exclusive_group(required=True)
    goal.add_argument("--density", type=float, help="wished mean share of the blocks")
    goal.add_argument("--error", type=float, help="wished share of the attention mass that is lost")
    return parser.parse_args(argv)


def main(argv=None):
    options = _arguments(argv)
    try:
        dumps = [Dump(path) for path in options.dumps]
        dense = {int(i) for i in options.dense_layers.split(",") if i}
        layers = [Layer(dumps, i, options.stride, options.block) for i in range(_num_layers(dumps))]
        error = options.error if options.error is not None else error_for(
            [layer for i, layer in enumerate(layers) if i not in dense], options.density)
        rows = [None if i in dense else layer.thresholds(error) for i, layer in enumerate(layers)]
        density = float(numpy.mean([1.0 if i in dense else layer.at(error)[:, 0].mean()
                                    for i, layer in enumerate(layers)]))
        write_thresholds(options.out, options.stride, options.block, rows, error=error, density=density,
                         tokens=layers[0].lengths)
        if options.report is not None:
            write_report(options.report, layers, error, [pathlib.Path(path).name for path in options.dumps])
    except (OSError, ValueError) as problem:
        print(f"xattn_calibrate: {problem}", file=sys.stderr)
        return 1
    print(f"{len(layers)} layers, error {error:.4g}, density {density:.3f}: {options.out}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
