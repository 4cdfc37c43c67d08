"""True attention mass of blocks, and what a selection by block scores holds of it.

Every visible block of a row has a critical threshold: the share of the row's score that comes before it, in the order
in which the selection takes blocks (kept blocks first: below every threshold). A threshold lists the blocks whose
critical threshold is below it. So one sort per head gives density and recall at every threshold.

    density   listed blocks / visible blocks
    recall    attention mass of the queries of a row in its listed blocks / all of their mass
"""

import dataclasses

import numpy


def _modules(array):
    if hasattr(array, "data_ptr"):
        import torch
        return torch
    return numpy


def _numpy(array):
    return array.double().cpu().numpy() if hasattr(array, "data_ptr") else numpy.asarray(array, numpy.float64)


def block_mass(q, k, block=128, scale=None):
    """Causal softmax mass of every pair of blocks, float64 [h_q, blocks, blocks]; rows sum to their queries.

    q [n, h_q, d], k [n, h_kv, d] f32 of one prompt, NumPy or torch (then computed on its device)."""
    xp = _modules(q)
    n, heads, d = q.shape
    group, blocks = heads // k.shape[1], -(-n // block)
    scale = d**-0.5 if scale is None else scale
    mass = numpy.zeros((heads, blocks, blocks))
    for head in range(heads):
        keys = k[:, head // group].T * scale
        for row in range(blocks):
            begin, end = row * block, min((row + 1) * block, n)
            logits = q[begin:end, head] @ keys[:, :end]
            hidden = xp.triu(xp.ones_like(logits[:, begin:]), 1) > 0
            logits[:, begin:][hidden] = -numpy.inf
            logits = xp.exp(logits - xp.amax(logits, -1)[:, None])
            by_key = _numpy((logits / logits.sum(-1)[:, None]).sum(0))
            mass[head, row, :row + 1] = numpy.add.reduceat(by_key, numpy.arange(0, end, block))
    return mass


def critical_thresholds(scores):
    """scores [h, blocks, blocks] of a causal prompt: float64 of the same shape, below 0 for block 0 and the diagonal,
    +inf where a block is not visible. Of equal scores the lower block comes first."""
    scores = _numpy(scores)
    heads, blocks, _ = scores.shape
    critical = numpy.full(scores.shape, numpy.inf)
    for row in range(blocks):
        v = numpy.where(numpy.isnan(scores[:, row, :row + 1]), 0, scores[:, row, :row + 1])
        kept = numpy.zeros(row + 1, bool)
        kept[[0, row]] = True
        total = numpy.maximum(v.sum(-1, keepdims=True), 1e-300)
        others = numpy.where(kept, -1.0, v)
        order = numpy.argsort(-others, axis=-1, kind="stable")
        taken = numpy.take_along_axis(numpy.where(kept, 0.0, v), order, -1)
        before = v[:, kept].sum(-1, keepdims=True) + numpy.cumsum(taken, -1) - taken
        share = numpy.empty_like(v)
        numpy.put_along_axis(share, order, before / total, -1)
        critical[:, row, :row + 1] = numpy.where(kept, -1.0, share)
    return critical


@dataclasses.dataclass
class Curve:
    """Density and recall of one head as step functions of the threshold; thresholds ascend."""

    thresholds: numpy.ndarray  # of the blocks, sorted
    density: numpy.ndarray  # with this block and all before it
    recall: numpy.ndarray

    def _last(self, threshold):
        return numpy.searchsorted(self.thresholds, threshold, "left") - 1

    def at(self, threshold):
        """(density, recall) of a threshold."""
        i = self._last(threshold)
        return (self.density[i], self.recall[i]) if i >= 0 else (0.0, 0.0)

    def threshold_for(self, recall):
        """The smallest threshold with at least this recall; 1 when no threshold has it."""
        i = int(numpy.searchsorted(self.recall, recall, "left"))
        if i >= len(self.recall):
            return 1.0
        return float(min(max(numpy.nextafter(self.thresholds[i], 2), 0.0), 1.0))


def curves(prompts):
    """One Curve per head, of several prompts together. prompts: [(critical, mass)], both [h, blocks, blocks]."""
    result = []
    for head in range(prompts[0][0].shape[0]):
        visible = [numpy.isfinite(critical[head]) for critical, _ in prompts]
        critical = numpy.concatenate([c[head][v] for (c, _), v in zip(prompts, visible)])
        mass = numpy.concatenate([m[head][v] for (_, m), v in zip(prompts, visible)])
        order = numpy.argsort(critical, kind="stable")
        result.append(Curve(critical[order], numpy.arange(1, len(order) + 1) / len(order),
                            numpy.cumsum(mass[order]) / max(mass.sum(), 1e-300)))
    return result
