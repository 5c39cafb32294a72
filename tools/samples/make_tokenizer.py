#!/usr/bin/env python3
"""Train the bundled byte-level BPE tokenizer on the bundled training samples.

    python3 -m venv VENV && VENV/bin/pip install tokenizers==0.23.3
    VENV/bin/python tools/samples/make_tokenizer.py            write data/samples/tokenizer/
    VENV/bin/python tools/samples/make_tokenizer.py --check    change nothing; fail if the files would differ

Reads data/samples/train.json (run make_samples.py first) and prints how long passages, questions, answers and whole
rows come out in tokens. The validation samples are only measured, never trained on.
"""

import argparse
import json
import sys
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "data" / "samples"
VOCAB_SIZE = 2000
MODEL_MAX_LENGTH = 2048
SPECIAL_TOKENS = ["<pad>", "<s>", "</s>", "<unk>"]  # ids 0, 1, 2, 3

# Cuts text before BPE, in the manner of NemotronH tokenizers: words with at most one leading mark,
# single digits, runs of marks.
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
LEAD = r"[^\r\n\p{L}\p{N}]?"
SPLIT = "|".join([
    rf"{LEAD}{UPPER}*{LOWER}+",
    rf"{LEAD}{UPPER}+{LOWER}*",
    r"\p{N}",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])


def rows(split: str) -> list[tuple[str, str, str]]:
    """(context, question, answer) of every question of a split."""
    data = json.loads((SAMPLES / f"{split}.json").read_text(encoding="utf-8"))["data"]
    return [(p["context"], q["question"], q["answers"][0]["text"])
            for article in data for p in article["paragraphs"] for q in p["qas"]]


def prompt(context: str, question: str) -> str:
    return f"Context: {context} Question: {question} Answer: "


def train() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    samples = rows("train")
    contexts = list(dict.fromkeys(context for context, _, _ in samples))  # each passage once, in file order
    # Passages and answers stand behind a space in a row, so they are learnt behind one.
    corpus = [f"Context: {context}" for context in contexts]
    corpus += [f" Question: {question} Answer: {answer}" for _, question, answer in samples]
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def added_token(content: str) -> dict:
    return {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}


def files(tokenizer: Tokenizer) -> dict[str, str]:
    pad, bos, eos, unk = SPECIAL_TOKENS
    roles = {"bos_token": bos, "eos_token": eos, "pad_token": pad, "unk_token": unk}
    config = {
        "add_bos_token": False,
        "add_eos_token": False,
        "added_tokens_decoder": {
            str(i): {**added_token(token), "special": True} for i, token in enumerate(SPECIAL_TOKENS)},
        **roles,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MODEL_MAX_LENGTH,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    special = {role: added_token(token) for role, token in roles.items()}
    return {
        "tokenizer.json": tokenizer.to_str(pretty=True) + "\n",
        "tokenizer_config.json": json.dumps(config, indent=2) + "\n",
        "special_tokens_map.json": json.dumps(special, indent=2) + "\n",
    }


def verify(tokenizer: Tokenizer) -> None:
    """The ids, the byte alphabet and the exact way back that the files promise."""
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2, 3]
    assert all(tokenizer.token_to_id(symbol) is not None for symbol in pre_tokenizers.ByteLevel.alphabet())
    texts = [prompt(c, q) + a for split in ("train", "validation") for c, q, a in rows(split)]
    texts += ["tab\there  \r\n\n two", "naïve café – 日本語 🚲", "HelloWorld 3.14 can't I'LL", ""]
    for text in texts:
        ids = tokenizer.encode(text).ids
        assert tokenizer.decode(ids) == text, text
        assert not ids or min(ids) >= len(SPECIAL_TOKENS), text


def spread(values: list[int]) -> str:
    values = sorted(values)
    at = lambda share: values[min(len(values) - 1, int(share * len(values)))]
    return (f"mean {sum(values) / len(values):6.1f}  min {values[0]:3d}  median {at(0.5):3d}  "
            f"95% {at(0.95):3d}  max {values[-1]:3d}")


def report(tokenizer: Tokenizer) -> None:
    length = lambda text: len(tokenizer.encode(text).ids)
    for split in ("train", "validation"):
        samples = rows(split)
        print(f"{split}: {len(samples)} rows, lengths in tokens")
        print("  context ", spread([length(" " + c) for c in dict.fromkeys(c for c, _, _ in samples)]))
        print("  question", spread([length(" " + q) for _, q, _ in samples]))
        print("  answer  ", spread([length(" " + a) for _, _, a in samples]))
        print("  row+EOS ", spread([length(prompt(c, q) + a) + 1 for c, q, a in samples]))


def main() -> int:
    parser = argparse.ArgumentParser(description="Train or check the bundled tokenizer.")
    parser.add_argument("--check", action="store_true", help="fail if the committed files differ from a fresh training")
    parser.add_argument("--output", type=Path, default=SAMPLES / "tokenizer", help="folder of the tokenizer files")
    args = parser.parse_args()
    tokenizer = train()
    verify(tokenizer)
    failed = False
    for name, text in files(tokenizer).items():
        path = args.output / name
        if not args.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode("utf-8"))
        elif not path.is_file() or path.read_bytes() != text.encode("utf-8"):
            print(f"make_tokenizer: {name} differs from a fresh training", file=sys.stderr)
            failed = True
    report(tokenizer)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
