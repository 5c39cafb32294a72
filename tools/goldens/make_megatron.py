"""Makes tests/goldens/datasets/megatron.json: samples of NeMo AutoModel's MegatronPretraining.

    ~/goldens-env/bin/pip install pybind11 setuptools torchdata
    ~/goldens-env/bin/python tools/goldens/make_megatron.py ~/automodel     # see make_datasets.py

Token files are made from the lengths of their sequences: sequence i of file f holds the ids 1000 f + 50 i, + 1, ...
The file holds these lengths, the arguments of each case and the rows that the class returns.
"""

import json
import pathlib
import sys
import tempfile
import types

sys.path.insert(0, sys.argv[1])
import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES = {"a": [5, 3, 7, 2, 6], "b": [11, 4, 9, 1, 8, 8, 3, 12], "c": [40]}

# steps and batch give max_steps * global_batch_size samples of the training split.
CASES = [
    {"paths": "a", "seq_length": 4, "split": "1"},
    {"paths": "a", "seq_length": 4, "split": "1", "samples": 5},
    {"paths": "a", "seq_length": 4, "split": "1", "samples": 7},
    {"paths": "a", "seq_length": 4, "split": "1", "samples": 40, "seed": 7},
    {"paths": "b", "seq_length": 5, "split": "60,20,20"},
    {"paths": "b", "seq_length": 3, "split": "0.6, 0.4", "splits_to_build": "validation"},
    {"paths": "b", "seq_length": 2, "split": "3,1,1", "splits_to_build": "test"},
    {"paths": ["a", "b", "c"], "seq_length": 4, "split": "1"},
    {"paths": ["a", "c"], "seq_length": 4, "split": "1", "samples": 9},
    {"paths": ["0.7", "a", "0.3", "b"], "seq_length": 4, "split": "1", "samples": 30},
    {"paths": ["30", "c", "60", "b", "11", "a"], "seq_length": 3, "split": "1", "samples": 50, "seed": 99},
]


def rows_of(case, folder):
    from nemo_automodel.components.datasets.llm.megatron_dataset import MegatronPretraining
    place = lambda path: path if path.replace(".", "").isdigit() else str(folder / path)
    paths = case["paths"]
    tokenizer = types.SimpleNamespace(pad_token_id=-1, eos_token_id=0, name_or_path="none")
    split = case.get("splits_to_build", "train")
    made = MegatronPretraining(
        paths=place(paths) if isinstance(paths, str) else [place(path) for path in paths], tokenizer=tokenizer,
        seq_length=case["seq_length"], split=case["split"], seed=case.get("seed", 1234), splits_to_build=split,
        num_train_samples=case.get("samples"), trainer_max_steps=None, micro_batch_size=1, global_batch_size=1)
    made.build()
    dataset = made.get_dataset(split)
    rows = [dataset[i] for i in range(len(dataset))]
    for row in rows:
        assert row["input_ids"][1:].tolist() == row["labels"][:-1].tolist() and row["loss_mask"].all()
    return [row["input_ids"].tolist() + row["labels"][-1:].tolist() for row in rows]


def main():
    package = "nemo_automodel.components.datasets.llm"
    module = types.ModuleType(package)  # without the package's __init__, which imports all classes
    module.__path__ = [str(pathlib.Path(sys.argv[1]) / package.replace(".", "/"))]
    sys.modules[package] = module
    from nemo_automodel.components.datasets.llm.megatron.indexed_dataset import IndexedDatasetBuilder
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for f, (file, lengths) in enumerate(FILES.items()):
            builder = IndexedDatasetBuilder(str(folder / file) + ".bin", dtype=numpy.int32)
            for i, length in enumerate(lengths):
                ids = 1000 * f + 50 * i + numpy.arange(length)
                builder.add_document(ids, [length])
            builder.finalize(str(folder / file) + ".idx")
        cases = [{**case, "rows": rows_of(case, folder)} for case in CASES]
        index = (folder / "a.idx").read_bytes().hex()
    lines = ",\n".join(json.dumps(case) for case in cases)
    out = ROOT / "tests/goldens/datasets/megatron.json"
    out.write_text(f'{{"files": {json.dumps(FILES)},\n"a.idx": "{index}",\n"cases": [\n{lines}\n]}}\n')
    print(len(cases), "cases,", [len(case["rows"]) for case in cases], "rows")


if __name__ == "__main__":
    main()
