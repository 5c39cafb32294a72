"""Reads the event files of a run with TensorBoard's own reader and compares them with the run's logs.

    python3 -m venv ~/tensorboard-env                  # outside this repository
    ~/tensorboard-env/bin/pip install -r tools/tensorboard/requirements.txt
    ~/tensorboard-env/bin/python tools/tensorboard/read_events.py RUN_DIRECTORY

RUN_DIRECTORY is checkpoint.checkpoint_dir of a run whose recipe has the section `tensorboard`. Prints a line for each
tag. Ends with exit code 1 when a point differs from the logs, is missing, or is one that a resumed run has made void.
"""

import argparse
import json
import struct
import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import SCALARS, TENSORS, EventAccumulator
from tensorboard.util import tensor_util

# Fields of the logs that are scalars of the same name, and Megatron's tags for them.
TRAINING = {"loss": "lm loss", "grad_norm": "grad-norm", "lr": "learning-rate", "num_label_tokens": None,
            "num_tokens_per_step": None, "skipped_steps": None}
VALIDATION = {"val_loss": "lm loss validation"}


def f32(value):
    return struct.unpack("<f", struct.pack("<f", float(value)))[0]


def same(a, b):
    return a == b or (a != a and b != b)


def read_points(folder):
    """Points by tag, as TensorBoard shows them: step to value."""
    accumulator = EventAccumulator(str(folder), size_guidance={SCALARS: 0, TENSORS: 0})
    accumulator.Reload()
    points = {tag: [(e.step, e.value) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}
    for tag in accumulator.Tags()["tensors"]:  # readers turn simple values into tensors
        points[tag] = [(e.step, float(tensor_util.make_ndarray(e.tensor_proto))) for e in accumulator.Tensors(tag)]
    return points


def read_log(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def compare(log, fields, points, problems):
    for field, megatron in fields.items():
        wanted = [(line["step"], f32(line[field])) for line in log if line.get(field) is not None]
        for tag in filter(None, (field, megatron)):
            found = points.get(tag, [])
            if len(found) != len(wanted) or any(a[0] != b[0] or not same(a[1], b[1]) for a, b in zip(found, wanted)):
                problems.append(f"{tag}: {len(found)} points, which are not the {len(wanted)} of the log")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path, help="checkpoint.checkpoint_dir of the run")
    parser.add_argument("--events", type=Path, help="tensorboard.tensorboard_dir, where the recipe names one")
    arguments = parser.parse_args()
    folder = arguments.events or arguments.run / "tensorboard"
    steps, samples = read_points(folder), read_points(folder / "samples")
    for points in (steps, samples):
        for tag, values in sorted(points.items()):
            print(f"{tag:40} {len(values):6} points, {values[0]} to {values[-1]}")

    problems = []
    training, validation = read_log(arguments.run / "training.jsonl"), read_log(arguments.run / "validation.jsonl")
    compare(training, TRAINING, steps, problems)
    compare(validation, VALIDATION, steps, problems)
    for tag, values in samples.items():
        twin = steps.get(tag.removesuffix(" vs samples"), [])
        if [v for _, v in values] != [v for _, v in twin]:
            problems.append(f"{tag}: other values than over steps")
        if any(a >= b for (a, _), (b, _) in zip(values, values[1:])):
            problems.append(f"{tag}: samples that do not grow")
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{len(steps) + len(samples)} tags, {len(training)} steps: " + ("FAILED" if problems else "as the logs say"))
    return 1 if problems or not training else 0


if __name__ == "__main__":
    sys.exit(main())
