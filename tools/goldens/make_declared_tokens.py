#!/usr/bin/env python3
"""Writes tests/goldens/tokenizer/declared_tokens.json: what AutoTokenizer makes of tokens that are declared in the files
beside tokenizer.json.

    ~/goldens-env/bin/python tools/goldens/make_declared_tokens.py [--random N] [--output FILE]

tokenizer   the tokenizer.json of all cases but for `added_tokens` and `padding`
texts       what each case encodes
cases       [{name, files: {NAME: document}, added: {id: [content, whether decoding leaves it out as special]}, named: {NAME: content}, ids: [of each text],
            decoded: [of each ids, special tokens left out]}], or with `refused` in the place of the last four where AutoTokenizer
            throws. `files["tokenizer.json"]` holds `added_tokens` and, where there is one, `padding`.
"""
import argparse
import json
import pathlib
import random
import tempfile

from transformers import AutoTokenizer
from transformers.utils import logging

logging.set_verbosity_error()
ROOT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "goldens" / "tokenizer"
LETTERS = "<>|/_abcdefghijklmnopqrstuvwxyz "
NAMES = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"]
FLAGS = ["single_word", "lstrip", "rstrip", "normalized", "special"]
TEXTS = ["a <x> b", "<y><z>", "<end> <pad>x<image>", "ab  <w> <x>", "<s>the <v></s>", "abc<x >"]


def tokenizer_document():
    byte_letters = [" abcdefghijklmnopqrstuvwxyz<>|/_"[i] for i in range(32)]
    vocab = {letter if letter != " " else "Ġ": i for i, letter in enumerate(byte_letters)}
    for token in ["ab", "abc", "<s>", "</s>"]:
        vocab[token] = len(vocab)
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": vocab, "merges": [["a", "b"], ["ab", "c"]]}}


DOCUMENT = tokenizer_document()
SIZE = len(DOCUMENT["model"]["vocab"])


def token(content, **flags):
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, **flags}


def saved(content, **flags):
    return {"__type": "AddedToken", **token(content, **flags)}


def in_tokenizer(*contents, **flags):
    ids = iter(range(SIZE, 10000))
    return [{"id": DOCUMENT["model"]["vocab"].get(c) if c in DOCUMENT["model"]["vocab"] else next(ids),
             "special": True, **token(c), **flags} for c in contents]


def hand_made():
    own = in_tokenizer("<s>", "</s>", "<x>")
    yield "nothing beside", own, {}
    yield "added_tokens_decoder", own, {"tokenizer_config.json": {"added_tokens_decoder": {
        str(SIZE): token("<x>", special=False), str(SIZE + 1): token("<y>", special=True), str(SIZE + 2): token("<z>", special=False)}}}
    yield "ids of added_tokens_decoder are not kept", own, {"tokenizer_config.json": {"added_tokens_decoder": {
        "90": token("<z>", special=True), "70": token("<y>", special=True)}}}
    yield "flags of added_tokens_decoder replace", own, {"tokenizer_config.json": {"added_tokens_decoder": {
        str(SIZE): token("<x>", special=True, lstrip=True, rstrip=True)}}}
    yield "additional_special_tokens", own, {"tokenizer_config.json": {"additional_special_tokens": ["<y>", "<x>", "<z>"]}}
    yield "additional_special_tokens as saved objects", own, {"tokenizer_config.json": {
        "additional_special_tokens": [saved("<y>", lstrip=True), saved("<z>", special=True)]}}
    yield "extra_special_tokens as a list", own, {"tokenizer_config.json": {
        "extra_special_tokens": ["<y>"], "additional_special_tokens": ["<z>"]}}
    yield "an empty extra_special_tokens", own, {"tokenizer_config.json": {
        "extra_special_tokens": [], "additional_special_tokens": ["<z>"]}}
    yield "extra_special_tokens as an object", own, {"tokenizer_config.json": {
        "extra_special_tokens": {"image_token": "<image>", "video": "<v>"}, "additional_special_tokens": ["<z>"]}}
    yield "a token of another name", own, {"tokenizer_config.json": {"image_token": "<image>", "add_bos_token": True, "turn": "<y>"}}
    yield "pad_token alone", own, {"tokenizer_config.json": {"pad_token": "<pad>", "eos_token": "</s>"}}
    yield "pad_token of the vocabulary", own, {"tokenizer_config.json": {"pad_token": "ab"}}
    yield "a named token is special", in_tokenizer("<x>", "<y>", special=False), {"tokenizer_config.json": {"eos_token": "<y>"}}
    yield "a named token of added_tokens_decoder is special", own, {"tokenizer_config.json": {
        "eos_token": "<y>", "added_tokens_decoder": {str(SIZE + 1): token("<y>", special=False)}}}
    yield "special_tokens_map.json wins", own, {
        "tokenizer_config.json": {"eos_token": "</s>", "bos_token": "<s>", "pad_token": "<x>"},
        "special_tokens_map.json": {"eos_token": "<x>", "pad_token": token("<pad>", rstrip=True)}}
    yield "special_tokens_map.json beside added_tokens_decoder is not read", own, {
        "tokenizer_config.json": {"eos_token": "</s>", "added_tokens_decoder": {}},
        "special_tokens_map.json": {"eos_token": "<y>", "pad_token": "<pad>", "additional_special_tokens": ["<z>"]},
        "added_tokens.json": {"<v>": SIZE + 1}}
    yield "special_tokens_map.json alone", own, {
        "special_tokens_map.json": {"eos_token": "<end>", "additional_special_tokens": ["<y>", "<z>"], "image_token": "<image>"}}
    yield "lists of both files", own, {
        "tokenizer_config.json": {"additional_special_tokens": ["<y>"]},
        "special_tokens_map.json": {"additional_special_tokens": ["<z>"]}}
    yield "lists of both files in the new form", own, {
        "tokenizer_config.json": {"extra_special_tokens": ["<y>"]},
        "special_tokens_map.json": {"extra_special_tokens": ["<z>", token("<w>")]}}
    yield "objects in the list of special_tokens_map.json", own, {
        "special_tokens_map.json": {"additional_special_tokens": [token("<y>"), token("<z>")]}}
    yield "a new object in special_tokens_map.json", own, {
        "special_tokens_map.json": {"extra_special_tokens": {"image_token": "<image>"}}}
    yield "null in special_tokens_map.json", own, {
        "tokenizer_config.json": {"eos_token": "</s>", "pad_token": "<pad>"}, "special_tokens_map.json": {"pad_token": None}}
    yield "added_tokens.json", own, {"added_tokens.json": {"<z>": SIZE + 2, "<y>": SIZE + 1, "<x>": SIZE}}
    yield "added_tokens.json, special by name", own, {
        "added_tokens.json": {"<z>": SIZE + 2, "<y>": SIZE + 1},
        "tokenizer_config.json": {"pad_token": "<y>", "additional_special_tokens": ["<z>"]}}
    yield "added_tokens.json, special by a later list", own, {
        "added_tokens.json": {"<z>": SIZE + 2, "<y>": SIZE + 1}, "special_tokens_map.json": {"additional_special_tokens": ["<z>"]}}
    yield "added_tokens.json with an id of tokenizer.json", own, {"added_tokens.json": {"<z>": SIZE, "<y>": 60}}
    yield "a saved object as a named token", own, {"tokenizer_config.json": {"eos_token": saved("<end>", rstrip=True), "pad_token": saved("<pad>", normalized=True)}}
    yield "an object without type as a named token", own, {"tokenizer_config.json": {"eos_token": token("<end>")}}
    yield "objects without type in a list", own, {"tokenizer_config.json": {"additional_special_tokens": [token("<y>"), "<z>"]}}
    yield "padding of tokenizer.json", own, {"padding": {"strategy": "BatchLongest", "direction": "Right",
        "pad_to_multiple_of": None, "pad_id": 3, "pad_type_id": 0, "pad_token": "<pad>"}}
    yield "the same token named twice", own, {"tokenizer_config.json": {"pad_token": "<end>", "eos_token": "<end>", "additional_special_tokens": ["<end>"]}}
    yield "an empty token", own, {"tokenizer_config.json": {"pad_token": "", "additional_special_tokens": ["", "<y>"]}}


def random_case(rng, i):
    contents = ["<x>", "<y>", "<z>", "<w>", "<v>", "<pad>", "<end>", "<s>", "</s>", "<image>", "ab", "abc", "<x"]
    pick = lambda: rng.choice(contents)
    some = lambda low, high: rng.sample(contents, rng.randint(low, high))
    flags = lambda: {k: rng.random() < .3 for k in FLAGS[:4]}
    special = lambda: {"special": True} if rng.random() < .4 else {"special": False} if rng.random() < .4 else {}

    def obj(form):
        found = {"content": pick(), **{k: v for k, v in flags().items() if rng.random() < .7 or form == "map"}, **special()}
        return {"__type": "AddedToken", **found} if form == "config" else found

    def value(form):
        return pick() if rng.random() < .6 else obj(form)

    def named(form):
        out = {n: value(form) for n in NAMES if rng.random() < .3}
        for n in NAMES:
            if rng.random() < .05:
                out[n] = None
        if rng.random() < .2:
            out["image_token"] = value(form)
        if rng.random() < .2:
            out["extra_special_tokens"] = [] if rng.random() < .2 else [value(form) for _ in range(rng.randint(1, 3))]
        elif rng.random() < .2:
            out["extra_special_tokens"] = {n: value("config") for n in rng.sample(["boi_token", "image_token", "turn"], 2)}
        if rng.random() < .3:
            out["additional_special_tokens"] = [pick() if form == "map" or rng.random() < .6 else obj(form) for _ in range(rng.randint(0, 3))]
        items = list(out.items())
        rng.shuffle(items)
        return dict(items)

    own = [{**t, **flags(), "special": rng.random() < .7} for t in in_tokenizer(*some(0, 4))]
    files = {}
    if rng.random() < .85:
        files["tokenizer_config.json"] = named("config")
        if rng.random() < .45:
            files["tokenizer_config.json"]["added_tokens_decoder"] = {
                str(rng.randint(0, SIZE + 12)): {"content": c, **flags(), **special()} for c in some(0, 5)}
    if rng.random() < .5:
        files["special_tokens_map.json"] = named("map")
    if rng.random() < .4:
        files["added_tokens.json"] = {c: rng.randint(0, SIZE + 12) for c in some(0, 5)}
    if rng.random() < .1:
        files["padding"] = {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None, "pad_id": 3,
                            "pad_type_id": 0, "pad_token": pick()}
    return f"random {i}", own, files


def run(name, own, files):
    files = dict(files)
    document = {"added_tokens": own}
    if "padding" in files:
        document["padding"] = files.pop("padding")
    case = {"name": name, "files": {"tokenizer.json": document, **files}}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "tokenizer.json").write_text(json.dumps({**DOCUMENT, **document}))
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
        for file, text in files.items():
            if file == "tokenizer_config.json":
                text = {"tokenizer_class": "PreTrainedTokenizerFast", **text}
            (folder / file).write_text(json.dumps(text))
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder)
        except Exception as error:
            case["refused"] = type(error).__name__
            return case
        case["added"] = {str(i): [t.content, tokenizer.decode([i], skip_special_tokens=True) == ""]
                         for i, t in sorted(tokenizer.added_tokens_decoder.items())}
        case["named"] = {k: str(v) for k, v in tokenizer.special_tokens_map.items()}
        case["ids"] = [tokenizer.encode(text, add_special_tokens=False, padding=False) for text in TEXTS]
        case["decoded"] = [tokenizer.decode(ids, skip_special_tokens=True) for ids in case["ids"]]
    return case


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--random", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "declared_tokens.json")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    cases = [run(*case) for case in hand_made()]
    cases += [run(*random_case(rng, i)) for i in range(options.random)]
    lines = ",\n".join(json.dumps(case) for case in cases)
    base = {k: v for k, v in DOCUMENT.items() if k not in ("added_tokens", "padding")}
    options.output.write_text('{"tokenizer": %s,\n"texts": %s,\n"cases": [\n%s\n]}\n' % (json.dumps(base), json.dumps(TEXTS), lines))
    refused = [case["name"] for case in cases if "refused" in case]
    print(len(cases), "cases; refused:", len(refused), refused[:12])


main()
