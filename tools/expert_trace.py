#!/usr/bin/env python3
"""Replays which experts tokens chose, to find how many of them a GPU should hold
(docs/experts-in-host-memory.md).

usage: expert_trace.py replay FILE [--budgets N,N..] [--batch T] [--warm STEPS] [--counts OUT.json] [--json]
       expert_trace.py synthetic FILE --routing uniform|zipf:S [--repeats R] [--tokens N] [--batch T]
                       [--experts E] [--k K] [--layers L] [--seed S]
       expert_trace.py table [--steps N] [--seed S]

replay     the share of a step's experts that are in their slots already (h), over all layers, for every budget of slots
           a layer and four ways to choose who keeps one:
             lru      the expert whose last use is longest ago leaves; every miss enters
             score    what dsv4 does: last use and a count that forgets, a miss enters if its score is not lower
                      (dsv4/ops/parts/experts_fetch/decide.h; the same integers)
             static   the experts that the whole trace uses most, never changed: the best fixed choice in hindsight
             belady   who is used again last leaves, a miss that would be it does not enter: no way to choose has more hits
           --batch T    T tokens of different sequences make a step, as a server would decode them: the steps of the file
                        are split into tokens first. Default: the steps as they are in the file
           --warm N     steps that fill the slots and are not counted (default: a tenth)
           --counts OUT writes {"experts": E, "layers": [[uses of each expert]]}, for dsv4 --experts-counts
synthetic  a trace whose tokens choose K different experts by popularity 1 / rank^S, each layer in an order of its own;
           with --repeats R a token takes each expert of the token before it, in its sequence, with probability R
table      the table of the design, section 2.3: zipf:0.88 in one layer of 256 experts, 6 chosen

The file is described in dsv4/engine/expert_trace.h. A last step that is not complete is left out, with a line on stderr.
"""

import argparse
import bisect
import collections
import heapq
import json
import pathlib
import random
import struct
import sys

MAGIC, VERSION = b"dsv4xtrc", 1
NEVER = 1 << 62

Trace = collections.namedtuple("Trace", "layers experts k steps")  # steps: [(sequences, [layer][token] ids)]


def fail(text):
    sys.exit(f"expert_trace.py: {text}")


def read_trace(path):
    try:
        data = pathlib.Path(path).read_bytes()
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")
    if data[:8] != MAGIC or len(data) < 24:
        fail(f"{path} is no trace of experts: it does not begin with {MAGIC.decode()}")
    version, layers, experts, k = struct.unpack_from("<4I", data, 8)
    if version != VERSION:
        fail(f"{path} has version {version}, this program reads {VERSION}")
    if not (0 < layers <= 1 << 16 and 0 < k <= experts <= 1 << 16):
        fail(f"{path}: {layers} layers, {experts} experts, {k} chosen")
    steps, at = [], 24
    while at + 4 <= len(data):
        tokens, = struct.unpack_from("<I", data, at)
        end = at + 4 + 8 * tokens + 2 * layers * tokens * k
        if end > len(data):
            break
        sequences = struct.unpack_from(f"<{tokens}q", data, at + 4)
        ids = struct.unpack_from(f"<{layers * tokens * k}H", data, at + 4 + 8 * tokens)
        if ids and max(ids) >= experts:
            fail(f"{path}: step {len(steps)} has expert {max(ids)} of {experts}")
        rows = [ids[i:i + k] for i in range(0, len(ids), k)]
        steps.append((sequences, [rows[l * tokens:(l + 1) * tokens] for l in range(layers)]))
        at = end
    if at != len(data):
        print(f"expert_trace.py: {path} ends inside step {len(steps)}, which is left out", file=sys.stderr)
    return Trace(layers, experts, k, steps)


def write_trace(path, trace):
    try:
        with open(path, "xb") as file:
            file.write(MAGIC + struct.pack("<4I", VERSION, trace.layers, trace.experts, trace.k))
            for sequences, layers in trace.steps:
                flat = [e for layer in layers for row in layer for e in row]
                file.write(struct.pack(f"<I{len(sequences)}q", len(sequences), *sequences))
                file.write(struct.pack(f"<{len(flat)}H", *flat))
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror}")


def batched(trace, batch):
    """Steps of up to `batch` tokens of different sequences; the n-th tokens of the sequences go together."""
    of_sequence = collections.OrderedDict()
    for sequences, layers in trace.steps:
        for t, sequence in enumerate(sequences):
            of_sequence.setdefault(sequence, []).append([layer[t] for layer in layers])
    waiting, active, steps = collections.deque(of_sequence.items()), [], []
    while waiting or active:
        while waiting and len(active) < batch:
            sequence, tokens = waiting.popleft()
            active.append((sequence, iter(tokens)))
        step, still = [], []
        for sequence, tokens in active:
            token = next(tokens, None)
            if token is not None:
                step.append((sequence, token))
                still.append((sequence, tokens))
        active = still
        if step:
            steps.append(([s for s, _ in step], [[token[l] for _, token in step] for l in range(trace.layers)]))
    return trace._replace(steps=steps)


def sets_of(trace, layer):
    return [sorted({e for row in layers[layer] for e in row}) for _, layers in trace.steps]


def lru(sets, warm, experts, slots):
    last, held, hits, now = {}, set(), 0, 0
    for step, chosen in enumerate(sets):
        now += 1
        missing = [e for e in chosen if e not in held]
        if step >= warm:
            hits += len(chosen) - len(missing)
        for e in chosen:
            last[e] = now
        held.update(missing)
        if len(held) > slots:
            for e in sorted(held, key=lambda e: (last[e], e))[:len(held) - slots]:
                held.discard(e)
    return hits


def lg(value):
    """256 log2(value), linear between powers of two."""
    exponent = value.bit_length() - 1
    return 256 * exponent + ((value - (1 << exponent)) * 256 >> exponent)


def score(sets, warm, experts, slots, weight=16):
    count, last = [0] * experts, [0] * experts
    places, place_of, free, hits = [None] * slots, {}, list(range(slots)), 0
    for step, chosen in enumerate(sets):
        now = step + 1
        count = [c - (c + 128 >> 8) for c in count]
        for e in chosen:
            count[e] += 65536
            last[e] = now

        def value(e):
            return weight * lg(65536 + count[e]) - 256 * min(now - last[e], 1 << 20)
        missing = [e for e in chosen if e not in place_of]
        if step >= warm:
            hits += len(chosen) - len(missing)
        if not missing:
            continue
        victims = None
        for e in missing:
            if free:
                place = heapq.heappop(free)
            else:
                if victims is None:  # experts of this step are not among them, nor do those that enter become one
                    used = set(chosen)
                    victims = [(value(x), p) for x, p in place_of.items() if x not in used]
                    heapq.heapify(victims)
                if not victims or value(e) < victims[0][0]:
                    continue
                place = heapq.heappop(victims)[1]
                del place_of[places[place]]
            places[place], place_of[e] = e, place
    return hits


def static(sets, warm, experts, slots):
    uses = collections.Counter(e for chosen in sets for e in chosen)
    held = set(sorted(range(experts), key=lambda e: (-uses[e], e))[:slots])
    return sum(e in held for chosen in sets[warm:] for e in chosen)


def belady(sets, warm, experts, slots):
    uses = collections.defaultdict(list)
    for step, chosen in enumerate(sets):
        for e in chosen:
            uses[e].append(step)

    def next_use(e, step):
        at = bisect.bisect_right(uses[e], step)
        return uses[e][at] if at < len(uses[e]) else NEVER
    held, hits = {}, 0  # expert: its next use
    for step, chosen in enumerate(sets):
        if step >= warm:
            hits += sum(e in held for e in chosen)
        for e in chosen:
            held[e] = next_use(e, step)
        if len(held) > slots:
            for e in heapq.nlargest(len(held) - slots, held, key=lambda e: (held[e], e)):
                del held[e]
    return hits


POLICIES = {"lru": lru, "score": score, "static": static, "belady": belady}


def rates(trace, budgets, warm):
    """{policy: [h of each budget]}, and the distinct experts of a step and layer."""
    layers = [sets_of(trace, l) for l in range(trace.layers)]
    total = sum(len(chosen) for sets in layers for chosen in sets[warm:])
    steps = max(1, (len(trace.steps) - warm) * trace.layers)
    hits = {name: [sum(policy(sets, warm, trace.experts, b) for sets in layers) / max(total, 1) for b in budgets]
            for name, policy in POLICIES.items()}
    return hits, total / steps


def default_budgets(experts):
    return sorted({max(1, experts * i // 16) for i in range(1, 17)})


def replay(options):
    trace = read_trace(options.file)
    if options.batch is not None:
        trace = batched(trace, options.batch)
    if not trace.steps:
        fail(f"{options.file} holds no step")
    warm = len(trace.steps) // 10 if options.warm is None else options.warm
    if warm >= len(trace.steps):
        fail(f"--warm {warm}: there are {len(trace.steps)} steps")
    budgets = options.budgets or default_budgets(trace.experts)
    if max(budgets) > trace.experts:
        fail(f"--budgets: a layer has {trace.experts} experts")
    hits, distinct = rates(trace, budgets, warm)
    if options.counts:
        uses = [collections.Counter(e for chosen in sets_of(trace, l) for e in chosen) for l in range(trace.layers)]
        counts = {"experts": trace.experts, "layers": [[u[e] for e in range(trace.experts)] for u in uses]}
        try:
            with open(options.counts, "x") as file:
                json.dump(counts, file)
        except OSError as error:
            fail(f"cannot write {options.counts}: {error.strerror}")
    if options.json:
        print(json.dumps({"steps": len(trace.steps), "warm": warm, "distinct": distinct, "budgets": budgets, **hits}))
        return
    print(f"{len(trace.steps)} steps, {warm} of them warm up; a step chooses {distinct:.1f} of {trace.experts} experts "
          f"of a layer")
    print("slots  share  " + "  ".join(f"{name:>6}" for name in hits))
    for i, b in enumerate(budgets):
        print(f"{b:5}  {b / trace.experts:.3f}  " + "  ".join(f"{hits[name][i]:6.3f}" for name in hits))


def parse_routing(text):
    if text == "uniform":
        return 0.0
    try:
        skew = float(text.removeprefix("zipf:"))
    except ValueError:
        skew = -1
    if not text.startswith("zipf:") or not 0 <= skew <= 10:
        fail(f"--routing {text}: want uniform, or zipf:S with S from 0 to 10")
    return skew


class Router:
    """One layer: k different experts of a token, drawn by popularity until they are."""

    def __init__(self, rng, experts, k, skew, repeats):
        self.rng, self.k, self.repeats = rng, k, repeats
        self.order = list(range(experts))
        rng.shuffle(self.order)
        self.weights = [rank**-skew for rank in range(1, experts + 1)]
        self.ends = []
        for weight in self.weights:
            self.ends.append(weight + (self.ends[-1] if self.ends else 0))
        self.before = {}

    def token(self, sequence):
        chosen = [e for e in self.before.get(sequence, []) if self.repeats and self.rng.random() < self.repeats]
        while len(chosen) < self.k:
            at = bisect.bisect_right(self.ends, self.rng.random() * self.ends[-1])
            expert = self.order[min(at, len(self.order) - 1)]
            if expert not in chosen:
                chosen.append(expert)
        self.before[sequence] = chosen
        return chosen


def synthetic_trace(layers, experts, k, skew, repeats, tokens, batch, seed):
    rng = random.Random(seed)
    routers = [Router(rng, experts, k, skew, repeats) for _ in range(layers)]
    steps = []
    for first in range(0, tokens, batch):
        sequences = list(range(min(batch, tokens - first)))
        steps.append((sequences, [[router.token(s) for s in sequences] for router in routers]))
    return Trace(layers, experts, k, steps)


def synthetic(options):
    if options.k > options.experts:
        fail(f"--k {options.k}: a layer has {options.experts} experts")
    write_trace(options.file, synthetic_trace(options.layers, options.experts, options.k,
                                              parse_routing(options.routing), options.repeats, options.tokens,
                                              options.batch, options.seed))


def table(options):
    print("slots   T  repeats    lru  w=8   w=16   w=32  static  belady")
    for slots, batch in ((153, 1), (153, 8), (34, 1), (34, 8), (26, 32)):
        for repeats in (0, 0.3):
            trace = synthetic_trace(1, 256, 6, 0.88, repeats, options.steps * batch, batch, options.seed)
            sets, warm = sets_of(trace, 0), options.steps // 4
            total = sum(map(len, sets[warm:]))
            row = [lru(sets, warm, 256, slots)] + [score(sets, warm, 256, slots, w) for w in (8, 16, 32)]
            row += [static(sets, warm, 256, slots), belady(sets, warm, 256, slots)]
            print(f"{slots:5} {batch:3}  {repeats:7}  " + "  ".join(f"{hits / total:.3f}" for hits in row), flush=True)


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("want 1 or more")
    return value


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("replay")
    command.add_argument("file")
    command.add_argument("--budgets", type=lambda text: [positive(b) for b in text.split(",")])
    command.add_argument("--batch", type=positive)
    command.add_argument("--warm", type=int)
    command.add_argument("--counts")
    command.add_argument("--json", action="store_true")
    command.set_defaults(run=replay)
    command = commands.add_parser("synthetic")
    command.add_argument("file")
    command.add_argument("--routing", required=True)
    command.add_argument("--repeats", type=float, default=0)
    for name, value in (("tokens", 4096), ("batch", 1), ("experts", 256), ("k", 6), ("layers", 43)):
        command.add_argument(f"--{name}", type=positive, default=value)
    command.add_argument("--seed", type=int, default=1)
    command.set_defaults(run=synthetic)
    command = commands.add_parser("table")
    command.add_argument("--steps", type=positive, default=6000)
    command.add_argument("--seed", type=int, default=1)
    command.set_defaults(run=table)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
