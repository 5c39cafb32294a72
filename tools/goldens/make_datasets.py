"""Makes tests/goldens/datasets/rows.json: rows of NeMo AutoModel's own data set classes.

    ~/goldens-env/bin/pip install datasets
    ~/goldens-env/bin/pip install --no-deps --target ~/automodel nemo-automodel==0.7.0
    ~/goldens-env/bin/python tools/goldens/make_datasets.py ~/automodel

The classes are imported from that folder, or from a checkout, and run on the cases of dataset_cases.py. Every row is kept as the class
returns it, but for the attention mask. The file holds the contents of the data files too.
"""

import datetime
import importlib
import json
import os
import pathlib
import sys
import tempfile
import types

os.environ["HF_HUB_OFFLINE"] = "1"
scratch = tempfile.TemporaryDirectory()
os.environ["HF_HOME"] = scratch.name

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from dataset_cases import CASES, FILES

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODULES = {"ChatDataset": "chat_dataset", "HellaSwag": "hellaswag", "make_squad_dataset": "squad",
           "ColumnMappedTextInstructionDataset": "column_mapped_text_instruction_dataset"}
# Padding is <unk>, because AutoModel takes a pad id of 0 for none and pads with EOS at some places.
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<unk>", "unk_token": "<unk>"}


def import_class(checkout, name):
    """Without the package's __init__, which imports all classes and what they need."""
    sys.path.insert(0, str(checkout))
    package = "nemo_automodel.components.datasets.llm"
    if package not in sys.modules:
        module = types.ModuleType(package)
        module.__path__ = [str(checkout / package.replace(".", "/"))]
        sys.modules[package] = module
    return getattr(importlib.import_module(f"{package}.{MODULES[name]}"), name)


def load_tokenizer(name):
    if name == "samples":
        return AutoTokenizer.from_pretrained(str(ROOT / "data/samples/tokenizer"), **TOKENS)
    return PreTrainedTokenizerFast(tokenizer_file=str(ROOT / f"tests/goldens/tokenizer/{name}/tokenizer.json"), **TOKENS)


def file_text(name, rows):
    if name.endswith(".json"):
        return json.dumps(rows, ensure_ascii=False, indent=1)
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def rows_of(checkout, case, folder):
    tokenizer = load_tokenizer(case.get("tokenizer", "samples"))
    if case.get("template"):
        tokenizer.chat_template = case["template"]
    if case.get("template_file"):
        tokenizer.chat_template = (ROOT / "tests/goldens/chat" / case["template_file"]).read_text()
    file = folder / case["file"]
    arguments = dict(case["arguments"], tokenizer=tokenizer)
    if case["class"] in ("HellaSwag", "make_squad_dataset"):  # these read a folder with a file for each split
        split = folder / ("split_of_" + file.stem)
        split.mkdir(exist_ok=True)
        (split / "train.jsonl").write_text(file.read_text())
        arguments["path_or_dataset" if case["class"] == "HellaSwag" else "dataset_name"] = str(split)
    else:
        arguments["path_or_dataset_id"] = str(file)
    dataset = import_class(checkout, case["class"])(**arguments)
    return [{key: list(row[key]) for key in ("input_ids", "labels", "loss_mask") if key in row}
            for row in (dataset[i] for i in range(len(dataset)))]


def main():
    checkout = pathlib.Path(sys.argv[1]).expanduser()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        files = {file: file_text(file, rows) for file, rows in FILES.items()}
        for file, text in files.items():
            (folder / file).write_text(text)
        cases = [{**case, "rows": rows_of(checkout, case, folder)} for case in CASES]
    out = ROOT / "tests/goldens/datasets/rows.json"
    out.parent.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    # Some templates show the day, which the test repeats.
    out.write_text(f'{{"day": "{datetime.date.today()}",\n"files": {json.dumps(files, ensure_ascii=False, indent=1)},\n'
                   f'"cases": [\n{lines}\n]}}\n')
    print(len(cases), "cases,", sum(len(case["rows"]) for case in cases), "rows")


if __name__ == "__main__":
    main()
