#!/usr/bin/env python3
"""Writes tests/goldens/tokenizer/pipelines: tokenizers as SentencePiece's are converted (byte fallback, Metaspace), with
normal forms of Unicode, punctuation and steps behind ByteLevel, and what the `tokenizers` library makes of 200 lines each.

    VENV/bin/python tools/goldens/make_tokenizer_pipelines.py
    VENV/bin/python tools/goldens/make_tokenizer_pipelines.py --lines FILE --output FOLDER

The second form makes a larger set, of the lines of FILE (a JSON list of texts), which tests read once by
`NEMOCUBE_TOKENIZER_PIPELINES=FOLDER build/test_data -tc='pipelines*'`.

texts.json           the lines, shared by all kinds
models.json          {name: model}
<kind>.json
    tokenizer        tokenizer.json, whose model.vocab and model.merges are those of the model that they name
    ids              of each line, without special tokens
    offsets          sums of these ids' offsets, in characters
    special          sums of the ids with special tokens, as JSON
    decoded          sums of the text of these
    skipped          {line: its text decoded without special tokens}, where that is not the line itself
    random           [[random ids, their text, their text without special tokens]]
steps.json
    normalizers      [{spec, sums}] of the normalised lines
    pre_tokenizers   [{spec, sums}] of the lines' pieces, each behind the byte 1
A sum is four hexadecimal digits, the lowest of FNV-1a; the sums of all lines are one text.
"""
import argparse
import json
import pathlib
import random

from make_tokenizer_torture import ROOT, TEXTS, corpus_lines, random_texts
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LINES = 200
QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# Marks of several classes, letters with one, two and three parts, Hangul whole and in parts, letters that are never composed,
# compatibility characters.
MARKS = ["a", "e", "o", "A", "q", "\u0301", "\u0302", "\u0300", "\u0323", "\u0327", "\u0328", "\u031b", "\u0334", "\u0345", "é", "ế", "ǭ", "ṩ",
         "ậ", "ﬁ", "½", "²", "Å", "Ω", "Ⅷ", "①", "ｱ", "ﾞ", "か", "\u3099", "\u309a", "が", "ﷺ", "㌖", "ｶ", "𝐀", "ſ", "ẛ", "\u1100", "\u1161",
         "\u11a8", "각", "가", "\u0915", "\u093c", "\u0958", "\u05d0", "\u05b0", "\u05bc", "\ufb31", "\u0f71", "\u0f72", "\u0f73", "\u0344", "\u0340",
         "\u0374", "\u037e", "\u00a0", " ", "\u2126", "\uf900", "\U0002f800", "\u09c7", "\u09be", "\U0001d15e", "\U0001d165", "\u034f", "\u0338", "≠", "x"]
PIECES = ["▁", "▁▁", " ", "  ", "a", "the", " the", "model", "é", "日", "🙂", "\u0301", "1", "42", "½", "²", ".", "!?", "—", "$", "<t>", " <t> ", "Qa4", " Qa4",
          "Qb4", "<s>", "</s>", "\t", "\n", "\u00a0", "ﬁ", "Å", "_", "«", "<0x41>", "\u3000", "한", "\x00", "´"]


def lines():
    rng = random.Random(41)
    some = [text for text in TEXTS if len(text) <= 20][:76]
    some += ["".join(rng.choices(MARKS, k=rng.randint(1, 9))) for _ in range(44)]
    some += ["".join(rng.choices(PIECES, k=rng.randint(1, 8))) for _ in range(64)]
    return some + [text for text in random_texts(LINES, 42) if len(text) <= 24][:LINES - len(some)]


def add_tokens(tokenizer):
    tokenizer.add_tokens([AddedToken("Qa4", normalized=True, single_word=True)])
    tokenizer.add_special_tokens([AddedToken("Qb4", normalized=True), AddedToken("<t>", normalized=False, lstrip=True),
                                  AddedToken("<s>", normalized=False), AddedToken("</s>", normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair="$A $B",
                                                             special_tokens=[(t, tokenizer.token_to_id(t)) for t in ("<s>", "</s>")])


def trained(pre_tokenizer, **options):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.train_from_iterator(corpus_lines(), trainers.BpeTrainer(show_progress=False, **options))
    model = json.loads(tokenizer.to_str())["model"]
    return {"vocab": model["vocab"], "merges": [tuple(merge) for merge in model["merges"]]}


def make_models():
    """Of characters without tokens of bytes (plain), with those of all bytes, with those of most (holes); of bytes."""
    out = {"bytes": trained(pre_tokenizers.ByteLevel(add_prefix_space=False), vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())}
    for name, missing in (("plain", range(256)), ("characters", ()), ("holes", (0x85, 0xE3, *range(0xF0, 0xF8)))):
        out[name] = trained(pre_tokenizers.Metaspace(), vocab_size=300, limit_alphabet=70, special_tokens=["<unk>", "<s>", "</s>"])
        vocab = out[name]["vocab"]
        for byte in range(256):
            if byte not in missing:
                vocab.setdefault(f"<0x{byte:02X}>", len(vocab))
    return out


def kinds(models_):
    d, n, p = decoders, normalizers, pre_tokenizers
    out = {}

    def add(name, model, options, normalizer, pre_tokenizer, decoder):
        tokenizer = Tokenizer(models.BPE(**models_[model], **options))
        if normalizer:
            tokenizer.normalizer = normalizer
        if pre_tokenizer:
            tokenizer.pre_tokenizer = pre_tokenizer
        tokenizer.decoder = decoder
        add_tokens(tokenizer)
        out[name] = model, tokenizer

    llama = {"byte_fallback": True, "fuse_unk": True}
    stripped = d.Sequence([d.Replace("▁", " "), d.ByteFallback(), d.Fuse(), d.Strip(" ", 1, 0)])
    add("prepended", "characters", {**llama, "unk_token": "<unk>"}, n.Sequence([n.Prepend("▁"), n.Replace(" ", "▁")]), None, stripped)
    add("first_whole", "characters", llama, None, p.Metaspace(prepend_scheme="first", split=False), stripped)
    add("always_split", "holes", {"byte_fallback": True, "unk_token": "<unk>"}, None, p.Metaspace(prepend_scheme="always"),
        d.Sequence([d.Metaspace(prepend_scheme="always"), d.ByteFallback(), d.Strip("!", 1, 0)]))
    add("never_split", "plain", {"unk_token": "<unk>"}, None, p.Metaspace(prepend_scheme="never"), d.Metaspace(prepend_scheme="never"))
    add("replaced", "holes", {**llama, "unk_token": "<unk>"}, n.Replace(" ", "▁"), p.Split(" ", "merged_with_previous"),
        d.Sequence([d.Replace("▁", " "), d.ByteFallback(), d.Fuse()]))
    add("nfc", "bytes", {"ignore_merges": True}, n.NFC(), p.Sequence([p.Split(Regex(QWEN), "isolated"), p.ByteLevel(False, use_regex=False)]), d.ByteLevel())
    add("nfkc", "characters", {**llama, "unk_token": "<unk>"}, n.Sequence([n.NFKC(), n.Strip()]),
        p.Sequence([p.Punctuation("isolated"), p.Digits(True), p.Metaspace(prepend_scheme="first")]),
        d.Sequence([d.ByteFallback(), d.Metaspace(prepend_scheme="first")]))
    add("behind_bytes", "bytes", {}, None, p.Sequence([p.Digits(False), p.ByteLevel(False), p.Punctuation("merged_with_next"), p.Digits(True)]),
        d.ByteLevel())
    return out


def steps():
    n, p = normalizers, pre_tokenizers
    behaviors = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
    normal = [n.NFC(), n.NFD(), n.NFKC(), n.NFKD(), n.Sequence([n.NFD(), n.Replace(Regex(r"\p{M}"), ""), n.NFC()]),
              n.Sequence([n.Strip(), n.Prepend("é"), n.NFKC(), n.Replace("e", "e\u0301"), n.NFC()])]
    pre = [p.Metaspace(prepend_scheme=scheme, split=split) for scheme in ("always", "first", "never") for split in (True, False)]
    pre += [p.Metaspace(replacement="_", prepend_scheme="always"), p.Sequence([p.Punctuation("isolated"), p.Metaspace(prepend_scheme="first")]),
            p.Sequence([p.Digits(True), p.Metaspace(prepend_scheme="always", split=False), p.Split("▁", "removed")])]
    pre += [p.Punctuation(behavior) for behavior in behaviors]
    pre += [p.Digits(False), p.Digits(True)]
    byte_level = p.ByteLevel(add_prefix_space=False)
    pre += [p.Sequence([byte_level, p.Punctuation(behavior)]) for behavior in behaviors]
    pre += [p.Sequence([byte_level, p.Digits(True)]), p.Sequence([byte_level, p.Digits(False), p.Metaspace(prepend_scheme="always")]),
            p.Sequence([p.ByteLevel(True, use_regex=False), p.Split("Ġ", "merged_with_next")]),
            p.Sequence([p.Metaspace(), p.ByteLevel(True, use_regex=False), p.Split(Regex("[a-z]+"), "isolated"), p.ByteLevel(True)])]
    return normal, pre


def sums_of(texts):
    out = ""
    for text in texts:
        state = 0xCBF29CE484222325
        for byte in text.encode():
            state = ((state ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
        out += f"{state & 0xFFFF:04x}"
    return out


def compact(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(compact(value) + "\n")


def random_ids(tokenizer, rng, count):
    vocab = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    every = [i for _, i in vocab]
    short = [i for token, i in vocab if len(token) == 1 or token.startswith("<0x")]
    spaces = [i for token, i in vocab if token[0] in "▁Ġ"] or every
    added = sorted(tokenizer.get_added_tokens_decoder())
    out = []
    while len(out) < count:
        ids = [rng.choice(rng.choice([every, short, short, spaces, added])) for _ in range(rng.randint(1, 12))]
        out.append([ids, *(tokenizer.decode(ids, skip_special_tokens=skip) for skip in (False, True))])
    return out


def expected(model, tokenizer, texts, rng):
    spec = json.loads(tokenizer.to_str())
    spec["model"].update(vocab=model, merges=model)
    plain = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    special = [tokenizer.encode(text).ids for text in texts]
    skipped = [tokenizer.decode(ids) for ids in special]
    return {"tokenizer": spec, "ids": [e.ids for e in plain], "offsets": sums_of(compact(e.offsets) for e in plain),
            "special": sums_of(map(compact, special)), "decoded": sums_of(tokenizer.decode(ids, skip_special_tokens=False) for ids in special),
            "skipped": {str(i): got for i, (text, got) in enumerate(zip(texts, skipped)) if got != text}, "random": random_ids(tokenizer, rng, len(texts) // 16)}


def sums_of_steps(texts):
    normal, pre = steps()
    tokenizer = Tokenizer(models.BPE())
    out = {"normalizers": [], "pre_tokenizers": []}
    for step in normal:
        tokenizer.normalizer = step
        out["normalizers"].append({"spec": json.loads(tokenizer.to_str())["normalizer"],
                                   "sums": sums_of(step.normalize_str(text) for text in texts)})
    for step in pre:
        tokenizer.pre_tokenizer = step
        out["pre_tokenizers"].append({"spec": json.loads(tokenizer.to_str())["pre_tokenizer"],
                                      "sums": sums_of("".join("\x01" + piece for piece, _ in step.pre_tokenize_str(text)) for text in texts)})
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lines", type=pathlib.Path)
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "pipelines")
    arguments = parser.parse_args()
    texts = json.loads(arguments.lines.read_text()) if arguments.lines else lines()
    write(arguments.output / "texts.json", texts)
    rng = random.Random(43)
    models_ = make_models()
    write(arguments.output / "models.json", {name: {**model, "merges": [" ".join(merge) for merge in model["merges"]]} for name, model in models_.items()})
    for name, (model, tokenizer) in kinds(models_).items():
        write(arguments.output / f"{name}.json", expected(model, tokenizer, texts, rng))
    write(arguments.output / "steps.json", sums_of_steps(texts))


if __name__ == "__main__":
    main()
