#!/usr/bin/env python3
"""Reads, plans and runs AutoModel's recipes, as they are, on small models and small data.

    python3 tools/recipes/check_automodel.py CHECKOUT PROGRAM [--only WORD] [--keep FOLDER]

CHECKOUT is a working tree of NVIDIA-NeMo/Automodel, PROGRAM is nemocube. docs/automodel_recipes.md says of each recipe how many
ranks it takes and how it runs here, or why it is refused; the script fails where that is not so, and where a recipe of these
folders has no row. For each recipe that runs it

 - makes a folder with the data, and gives the recipe a local cache of the Hub that holds a small model of the same kind under the
   name that the recipe has (HF_HOME),
 - runs `train --check` and `plan` on AutoModel's number of ranks, and looks for the least power of two that `plan` accepts,
 - trains at most two steps on the ranks of the table, with the overrides of the table and without warm-up of the learning rate, a
   benchmark with one step of warm-up on rows of 64 tokens: everything else is as the recipe says.

Of one that is refused, `train --check` has to end with exit code 2 and one error, which has the words of the table.

It prints a line for each recipe, needs neither network nor packages, and writes into a temporary folder only (--keep: into
FOLDER, which stays, with what each command printed). Needs Python 3.9 or newer, mpirun, and about 20 minutes on two cores.
"""

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from small_data import make_data
from small_models import DAMAGED_ROWS, make_models

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = Path("examples")
# Folders of EXAMPLES; the others are in one of them, FINETUNE.
OWN_PLACES = ("audio_finetune", "convergence", "dllm_sft", "llm_benchmark", "long_context_validation", "speculative",
              "vlm_benchmark", "vlm_finetune", "vlm_kd")
FINETUNE = EXAMPLES / "llm_finetune"
DOCUMENT = ROOT / "docs" / "automodel_recipes.md"
STEPS = 2
SECONDS = 900  # the limit of one command
BENCHMARK = "BenchmarkingRecipeForNextTokenPrediction"
BENCHMARK_RESULT = "benchmark.json"


class Failure(Exception):
    """What went wrong with a recipe; the text is one line."""


def place_of(name):
    """Of FOLDER or FOLDER/FILE in the checkout."""
    return (EXAMPLES if name.split("/")[0] in OWN_PLACES else FINETUNE) / name


class Row:
    """A recipe that runs: `file` | model | least, written ranks | ... | how it runs here."""

    def __init__(self, name, cells):
        self.name, run = name, cells[-1]
        layout, trained = re.fullmatch(r"(\d+), (\d+)", cells[2]), re.match(r"(\d+) ranks?\b", run)
        if not layout or not trained:
            raise SystemExit(f"{DOCUMENT}: {name}: want 'LEAST, WRITTEN' ranks and in the last column 'N ranks', "
                             f"got '{cells[2]}' and '{run}'")
        self.least, self.written, self.ranks = int(layout[1]), int(layout[2]), int(trained[1])
        self.overrides = re.findall(r"`([^`]+=[^`]+)`", run)


class RefusedRow:
    """A recipe that is refused, and words of the message."""

    def __init__(self, name, words):
        self.name, self.words = name, words


def read_tables():
    """Recipes by FOLDER/FILE. Those that run have a section for each folder; the section of refused ones has
    words of the message | reason | recipes."""
    rows, folder = {}, None
    for line in DOCUMENT.read_text().splitlines():
        if heading := re.match(r"## (.*)", line):
            folder = heading[1].strip("`")
        if not folder or not line.startswith("| `"):
            continue
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if folder == "Refused":
            named = [RefusedRow(name, cells[0].strip("`")) for name in re.findall(r"`([^`]+)`", cells[-1])]
        else:
            named = [Row(f"{folder}/{cells[0].strip('`')}", cells)]
        for row in named:
            if row.name in rows:
                raise SystemExit(f"{DOCUMENT}: {row.name} is there twice")
            rows[row.name] = row
    return rows


class Program:
    """nemocube and the environment in which it finds the made-up cache."""

    def __init__(self, path, home):
        self.path = str(path.resolve())
        self.environment = {**os.environ, "HF_HOME": str(home), "OMP_NUM_THREADS": "1"}
        self.environment.pop("HF_HUB_CACHE", None)
        if os.geteuid() == 0:
            self.environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    def run(self, what, arguments, folder, ranks=None):
        """Returns (exit code, all that was printed), which WHAT.txt in the folder has, too."""
        start = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks)] if ranks else []
        log = folder / f"{what}.txt"
        with open(log, "w") as output:
            process = subprocess.Popen([*start, self.path, *arguments], cwd=folder, env=self.environment, stdout=output,
                                       stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
            try:
                code = process.wait(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                process.terminate()  # mpirun ends its ranks
                try:
                    process.wait(timeout=30)
                except subprocess.TimeoutExpired:
                    process.kill()
                raise Failure(f"{what}: no end after {SECONDS} s")
        return code, log.read_text(errors="replace")

    def must_run(self, what, arguments, folder, ranks=None):
        code, text = self.run(what, arguments, folder, ranks)
        if code != 0:
            raise Failure(f"{what}: exit code {code}: {message_in(text)}")
        return text


def sets(changes):
    return [word for change in changes for word in ("--set", change)]


def message_in(text):
    """The program's error, with the first problem of several; else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    at = next((i for i, line in enumerate(lines) if "error: " in line), len(lines) - 1)
    return " ".join(lines[at:at + (2 if lines[at].endswith(":") else 1)]) if lines else "no message"


def least_ranks(program, recipe, folder, most):
    """The least power of two of ranks that `plan` accepts."""
    ranks = 1
    while ranks <= most:
        code, text = program.run(f"plan_{ranks}", ["plan", recipe, "--ranks", str(ranks)], folder)
        if code == 0:
            return ranks
        ranks *= 2
    raise Failure(f"plan: refused on 1 to {most} ranks: {message_in(text)}")


def check_refused(program, recipe, row, folder):
    code, text = program.run("check", ["train", "--check", recipe], folder)
    if code != 2 or text.count("error: ") != 1 or row.words not in text:
        raise Failure(f"check: want exit code 2 and one error with '{row.words}', got {code}: {message_in(text)}")
    return f"refused: {row.words}"


def check_benchmark(folder):
    """The run has written its figures, with finite losses of the first and the last step, which are returned."""
    result = json.loads((folder / BENCHMARK_RESULT).read_text())
    losses = [result[name] for name in ("loss_first", "loss_last")]
    if None in losses:
        raise Failure(f"train: want finite losses of the first and the last step, got {losses}")
    return losses


def check_log(folder, recipe_text):
    """The run has logged its steps, with finite losses, which are returned."""
    logs = list(folder.rglob("training.jsonl"))
    if len(logs) != 1:
        raise Failure(f"train: want one training.jsonl, got {len(logs)}")
    steps = [json.loads(line) for line in logs[0].read_text().splitlines()]
    if not 1 <= len(steps) <= STEPS or not all(math.isfinite(step["loss"]) for step in steps):
        raise Failure(f"train: want 1 to {STEPS} steps with finite losses, got {[step['loss'] for step in steps]}")
    if "mtp_use_repeated_layer: true" in recipe_text and "mtp_loss_2" not in steps[0]:
        raise Failure("train: want losses of two depths of multi-token prediction, got none")
    return [step["loss"] for step in steps]


def check_recipe(program, file, row, folder):
    """Returns the line about the recipe."""
    recipe, text = str(file.resolve()), file.read_text()
    if isinstance(row, RefusedRow):
        return check_refused(program, recipe, row, folder)
    # The small data give fewer steps than the recipe warms up.
    no_warmup = ["lr_scheduler.lr_warmup_steps=0"] if re.search(r"lr_warmup_steps: [1-9]", text) else []
    program.must_run("check", ["train", "--check", recipe, "--ranks", str(row.written), *sets(no_warmup)], folder)
    least = least_ranks(program, recipe, folder, row.written)
    if least != row.least:
        raise Failure(f"plan: the table says {row.least} ranks at least, got {least}")
    if least != row.written:
        program.must_run("plan", ["plan", recipe, "--ranks", str(row.written)], folder)
    benchmark = f"recipe: {BENCHMARK}" in text
    small = ["benchmark.warmup_steps=1", "dataset.seq_len=64", f"benchmark.json_output_path={BENCHMARK_RESULT}"] if benchmark else []
    changes = [f"step_scheduler.max_steps={STEPS}", *no_warmup, *small, *row.overrides]
    printed = program.must_run("train", ["train", recipe, *sets(changes)], folder, row.ranks)
    losses = check_benchmark(folder) if benchmark else check_log(folder, text)
    if "embedding_row_repair:" in text and f"embedding_row_repair: {len(DAMAGED_ROWS)} rows" not in printed:
        raise Failure(f"train: want {len(DAMAGED_ROWS)} repaired rows of the embeddings in the log, got no such line")
    plans = " and ".join(map(str, sorted({least, row.written})))
    with_what = f" with {' '.join(row.overrides)}" if row.overrides else ""
    return f"read, planned on {plans}, ran on {row.ranks}{with_what}: loss {', '.join(f'{loss:.3f}' for loss in losses)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkout", type=Path, help="working tree of NVIDIA-NeMo/Automodel")
    parser.add_argument("program", type=Path, help="nemocube")
    parser.add_argument("--only", metavar="WORD", default="", help="only recipes whose FOLDER/FILE has this")
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="work in this new folder and keep it")
    options = parser.parse_args()
    table = read_tables()
    names = {f"{folder}/{file.name}" for folder in {name.rsplit("/", 1)[0] for name in table}
             for file in (options.checkout / place_of(folder)).glob("*.yaml")}
    if not names:
        raise SystemExit(f"{options.checkout / FINETUNE}: holds no recipes; want a checkout of NVIDIA-NeMo/Automodel")
    for needed in (options.program, "mpirun"):
        if not shutil.which(needed):
            raise SystemExit(f"{needed}: is no program that can be started")
    with tempfile.TemporaryDirectory() as temporary:
        work = options.keep.resolve() if options.keep else Path(temporary)
        work.mkdir(parents=True, exist_ok=not options.keep)
        program = Program(options.program, work / "hf")
        hub, scratch = work / "hf" / "hub", work / "models"
        scratch.mkdir()
        try:
            make_models(hub, scratch, ROOT / "data" / "samples" / "tokenizer",
                        lambda arguments: program.must_run("make_model", arguments, scratch))
        except Failure as failure:
            raise SystemExit(f"the small models: {failure}")
        make_data(hub, work, ROOT / "data" / "samples")
        failed = []
        for name in sorted(name for name in names | set(table) if options.only in name):
            folder = work / "runs" / name.removesuffix(".yaml")
            folder.mkdir(parents=True)
            for place in ("sample-datasets", "your", "data"):
                (folder / place).symlink_to(work / place)
            (folder / "examples").symlink_to(options.checkout.resolve() / "examples")
            try:
                if name not in table:
                    raise Failure(f"has no row in {DOCUMENT.name}")
                if name not in names:
                    raise Failure(f"is in {DOCUMENT.name} and not in the checkout")
                line = check_recipe(program, options.checkout / place_of(name), table[name], folder)
            except Failure as failure:
                line = f"FAILED: {failure}"
                failed.append(name)
            print(f"{name}: {line}", flush=True)
    print(f"failed: {len(failed)}" if failed else f"all as {DOCUMENT.name} says", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
