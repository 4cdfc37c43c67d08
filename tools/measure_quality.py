#!/usr/bin/env python3
"""Quantizes the demo model in every way of the table and measures the loss; tools/pages makes the page.

    tools/measure_quality.py --out bench/results/quality_demo.json [--build build/cpu] [--prompts 100] [--only WORD]

Each row is one `dsv4 quantize`, one `dsv4 eval kld` against the official model's logits on the held-out text, and one
`dsv4 eval needle`. Logits are compared in exact numerics, where only the weights differ; recall is in official
numerics, the mode in normal use. About two minutes per row on 2 idle cores, 0.3 GB of temporary files. Numbers do not depend on
the machine, except for its SIMD width, which affects sums. The MTP block is left out of the folders: it changes no logit.
--only measures the rows with this format or these scales (nvfp4, imatrix), which then say so, and keeps the others of the
file.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "pages"))
import quality  # noqa: E402

TEXT = "tests/golden/demo/heldout.txt"
DISTANCES = (1000, 3000)
# (experts, dense, scales). The rows with nf use the other codebook. Rows with scales "imatrix" search with an imatrix
# of text that the model writes itself, at temperature 1 from these beginnings.
CALIBRATION = ("Long ago,", "Remember: the secret word of Mira is lantern.", "<｜User｜>Tell me a story about a ship.<｜Assistant｜></think>")
CALIBRATION_TOKENS = 3000
ROWS = [("keep", "keep", "search"), ("k4-e2m1", "keep", "search"),
        *((experts, "keep", scales) for experts in ("k5-bnf", "k4-bnf", "k3-bnf", "k2-bnf") for scales in ("reference", "search")),
        *((experts, "keep", "search") for experts in ("k5-nf", "k4-nf", "k3-nf", "k2-nf", "k4-e4m3", "k3-e4m3", "k2-e4m3")),
        *((experts, "keep", "imatrix") for experts in ("k3-e4m3", "k2-e4m3")),
        *(("keep", dense, "search") for dense in ("k5-bnf", "k4-bnf", "k5-e4m3", "k4-e4m3")),
        ("nvfp4", "keep", "search"),
        *(("keep", dense, scales) for dense in ("nvfp4", "mxfp4") for scales in ("reference", "search"))]


class Measure:
    def __init__(self, binary, folder, prompts):
        self.binary, self.folder, self.prompts = binary, folder, prompts
        self.reference = str(folder / "reference.logits")
        self.source = folder / "demo"
        self.source.mkdir()
        for file in Path("models/demo").iterdir():
            if file.is_file() and file.name not in ("mtp.safetensors", "model.safetensors.index.json"):
                shutil.copy(file, self.source)

    def dsv4(self, *arguments):
        run = subprocess.run([self.binary, *arguments, "--json"], stdout=subprocess.PIPE, text=True)
        if run.returncode != 0:
            sys.exit(f"dsv4 {' '.join(arguments)} failed")
        return json.loads(run.stdout)

    def divergence(self, model, numerics="exact"):
        report = self.dsv4("eval", "kld", model, "--device", "cpu", "--reference", self.reference, "--numerics", numerics)
        return {key: report[key] for key in ("tokens", "kld", "top1", "perplexity", "perplexity_error",
                                             "perplexity_ratio", "perplexity_ratio_error")}

    def recall(self, model):
        report = self.dsv4("eval", "needle", model, "--device", "cpu", "--prompts", str(self.prompts), "--seed", "1",
                           "--distances", ",".join(map(str, DISTANCES)))
        return report["recall"]

    def row(self, experts, dense, scales):
        out = self.folder / "model"
        how = ("--imatrix", self.imatrix()) if scales == "imatrix" else ("--scales", scales)
        self.dsv4("quantize", str(self.source), "-o", str(out), "--experts", experts, "--dense", dense, *how)
        ledger = json.loads((out / "quantization_ledger.json").read_text())
        # [name, format, elements, bytes, SQNR or null, largest error]
        changed = [w for w in ledger["weights"] if w[1].startswith("k") or (w[1] in (experts, dense) and w[4] is not None)]
        if not changed:  # the unchanged source: use its experts
            changed = [w for w in ledger["weights"] if ".ffn.experts." in w[0]]
        lossy = [w[4] for w in changed if w[4] is not None]
        row = {"experts": experts, "dense": dense, "scales": scales,
               "bits": 8 * sum(w[3] for w in changed) / sum(w[2] for w in changed),
               "file_bytes": sum(path.stat().st_size for path in out.glob("*.safetensors")),
               "sqnr_db": sum(lossy) / len(lossy) if lossy else None,
               **self.divergence(str(out)), "recall": self.recall(str(out))}
        subprocess.run(["rm", "-r", str(out)], check=True)
        return row

    def imatrix(self):
        """Made once."""
        path, text = self.folder / "demo.imatrix", self.folder / "calibration.txt"
        if not path.exists():
            command = [self.binary, "run", "demo", "--device", "cpu", "-n", str(CALIBRATION_TOKENS), "--ignore-eos", "--seed", "1", "--quiet"]
            written = [begin + subprocess.run([*command, "-p", begin], check=True, capture_output=True, text=True).stdout
                       for begin in CALIBRATION]
            text.write_text("\n".join(written))
            self.dsv4("eval", "imatrix", "demo", "-f", str(text), "-o", str(path))
        return str(path)

    def all(self, only, before):
        """All rows; with `only`, those without this word as they were before."""
        self.dsv4("eval", "kld", "demo", "--device", "cpu", "-f", TEXT, "--save-reference", self.reference, "--numerics", "exact")
        rows, later = [], {"measured": {**today(), "only": only}} if only else {}
        for row in ROWS:
            begin = time.perf_counter()
            if only is not None and only not in row:
                rows += [old for old in before if (old["experts"], old["dense"], old["scales"]) == row]
                continue
            rows.append({**self.row(*row), **later})
            print(f"{' '.join(row)}: KLD {rows[-1]['kld']['mean']:.3g}, {time.perf_counter() - begin:.0f} s", file=sys.stderr)
        return rows


def today():
    commit = subprocess.run(["git", "describe", "--always", "--dirty=+"], check=True, capture_output=True, text=True).stdout.strip()
    return {"date": time.strftime("%Y-%m-%d"), "commit": commit}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build/cpu")
    parser.add_argument("--prompts", type=int, default=100, help="recall prompts per distance")
    parser.add_argument("--only", help="a format or scales of the rows to measure")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        measure = Measure(str(Path(args.build) / "bin/dsv4"), Path(temporary), args.prompts)
        if args.only:
            result = json.loads(Path(args.out).read_text())
            result["rows"] = measure.all(args.only, result["rows"])
        else:
            rows = measure.all(None, [])
            result = {"model": "demo", "text": TEXT, **today(),
                      "command": f"tools/measure_quality.py --out {args.out} --prompts {args.prompts}", "prompts": args.prompts,
                      "official_numerics": measure.divergence("demo", "official"), "rows": rows}
    Path(args.out).write_text(json.dumps(result, indent=1) + "\n")
    for line in quality.broken_claims(result):
        print(f"claim not confirmed: {line}", file=sys.stderr)


if __name__ == "__main__":
    main()
