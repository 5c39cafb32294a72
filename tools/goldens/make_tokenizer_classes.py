#!/usr/bin/env python3
"""Writes tests/goldens/tokenizer/classes.json: where AutoTokenizer builds another pipeline than tokenizer.json says.

    VENV/bin/python tools/goldens/make_tokenizer_classes.py     (wants transformers 5.24; no network)

files     {name: tokenizer.json}, whose model.vocab and model.merges are those of the model of pipelines/models.json that they name
cases     [[name of a file, config.json, tokenizer_config.json, class that AutoTokenizer takes, parts that differ]]
Parts of the model that only unknown characters see are compared where some character may be unknown.
"""
import itertools
import json
import os
import pathlib
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

from make_tokenizer_pipelines import QWEN, ROOT, make_models, write  # noqa: E402
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

QWEN2 = QWEN
QWEN3_5 = QWEN.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")


def files(models_):
    d, n, p = decoders, normalizers, pre_tokenizers
    out = {}

    def add(name, model, options, normalizer, pre_tokenizer, decoder):
        tokenizer = Tokenizer(models.BPE(**models_[model], **options))
        if normalizer:
            tokenizer.normalizer = normalizer
        if pre_tokenizer:
            tokenizer.pre_tokenizer = pre_tokenizer
        tokenizer.decoder = decoder
        out[name] = model, json.loads(tokenizer.to_str())

    fallback = {"byte_fallback": True, "fuse_unk": True}
    plain = [d.Replace("▁", " "), d.ByteFallback(), d.Fuse()]
    stripped = d.Sequence([*plain, d.Strip(" ", 1, 0)])
    qwen = lambda expression: p.Sequence([p.Split(Regex(expression), "isolated"), p.ByteLevel(False, trim_offsets=False, use_regex=False)])
    add("prepended", "characters", {**fallback, "unk_token": "<unk>"}, n.Sequence([n.Prepend("▁"), n.Replace(" ", "▁")]), None, stripped)
    add("first", "characters", {**fallback, "unk_token": "<unk>"}, None, p.Metaspace(prepend_scheme="first", split=False), stripped)
    add("first with holes", "holes", {**fallback, "unk_token": "<unk>"}, None, p.Metaspace(prepend_scheme="first", split=False), stripped)
    add("always", "characters", fallback, None, p.Metaspace(prepend_scheme="always", split=False), stripped)
    add("never", "characters", {"byte_fallback": True}, None, p.Metaspace(prepend_scheme="never", split=False), d.Sequence(plain))
    add("replaced", "holes", {**fallback, "unk_token": "<unk>"}, n.Replace(" ", "▁"), p.Split(" ", "merged_with_previous"), d.Sequence(plain))
    add("bytes", "bytes", {}, None, p.ByteLevel(False), d.ByteLevel())
    add("prefix", "bytes", {"fuse_unk": True}, n.Sequence([n.NFC()]), p.ByteLevel(True), d.ByteLevel())
    add("nfc", "bytes", {}, n.NFC(), p.Sequence([p.ByteLevel(False, trim_offsets=False)]), d.ByteLevel())
    add("digits", "bytes", {}, n.NFC(), p.Sequence([p.Digits(True), p.ByteLevel(False)]), d.ByteLevel())
    add("words", "bytes", {}, n.NFC(), qwen(QWEN2), d.ByteLevel())
    add("words at once", "bytes", {"ignore_merges": True}, n.NFC(), qwen(QWEN2), d.ByteLevel())
    add("words with marks", "bytes", {}, n.NFC(), qwen(QWEN3_5), d.ByteLevel())
    # One file is byte-level by its post-processor alone.
    model, spec = out["prepended"]
    out["processed"] = model, {**spec, "post_processor": json.loads(processors.ByteLevel(trim_offsets=False).__getstate__())}
    return out


def steps(section, decoder):
    """The steps of a section in one list, without what changes neither ids nor text."""
    if section is None:
        return []
    inner = next((section[key] for key in ("normalizers", "pretokenizers", "decoders") if key in section), None)
    if inner is not None:
        return list(itertools.chain.from_iterable(steps(step, decoder) for step in inner))
    if section["type"] == "ByteLevel":
        return [{"type": "ByteLevel"} if decoder else {key: section[key] for key in ("type", "add_prefix_space", "use_regex")}]
    return [section]


def spells_everything(spec):
    vocab = spec["model"]["vocab"]
    if steps(spec["decoder"], True) == [{"type": "ByteLevel"}]:
        return set(pre_tokenizers.ByteLevel.alphabet()) <= set(vocab)
    return spec["model"]["byte_fallback"] and all(f"<0x{byte:02X}>" in vocab for byte in range(256))


def differences(spec, config, tokenizer_config):
    with tempfile.TemporaryDirectory() as folder:
        for name, document in (("config.json", config), ("tokenizer_config.json", tokenizer_config), ("tokenizer.json", spec)):
            if document is not None:
                pathlib.Path(folder, name).write_text(json.dumps(document))
        tokenizer = AutoTokenizer.from_pretrained(folder)
    made = json.loads(tokenizer.backend_tokenizer.to_str())
    out = [part for part in ("normalizer", "pre_tokenizer") if steps(spec[part], False) != steps(made[part], False)]
    options = ["byte_fallback", "ignore_merges"]
    if not spells_everything(spec) or not spells_everything(made):
        options += ["fuse_unk", "unk_token"]
    out += ["model." + option for option in options if spec["model"][option] != made["model"][option]]
    out += ["decoder"] if steps(spec["decoder"], True) != steps(made["decoder"], True) else []
    return type(tokenizer).__name__, out


def folders():
    """[(config.json, tokenizer_config.json, files)]"""
    named = lambda name, **more: {"tokenizer_class": name, **more}
    of = lambda model_type, **more: {"model_type": model_type, **more}
    llamas = ["prepended", "first", "always", "never", "first with holes", "bytes", "processed"]
    byte_level = ["bytes", "prefix", "nfc", "digits", "words", "words at once", "words with marks"]
    out = [(of("llama"), named("LlamaTokenizer"), llamas), (of("llama"), named("LlamaTokenizer", legacy=True), ["first", "always"]),
           (of("llama"), named("LlamaTokenizer", legacy=None, add_prefix_space=None), ["first"]), (of("llama"), named("LlamaTokenizer", add_prefix_space=False), ["first", "never"])]
    out += [(None, named("LlamaTokenizerFast"), llamas[:2]), (None, None, llamas[:1]), (of("llama"), None, llamas[:1]), (of("llama", tokenizer_class="LlamaTokenizer"), {}, llamas[:1])]
    out += [(of(kind), named("LlamaTokenizer"), ["prepended", "bytes"]) for kind in ("mistral", "ministral3", "nemotron_h", "nemotron-nas", "gemma", "qwen2", "qwen3", "phi3", "nemotron")]
    out += [(of("llama"), named(name), ["first"]) for name in ("PreTrainedTokenizerFast", "TokenizersBackend", "NoSuchTokenizer", "CodeLlamaTokenizer")]
    out += [(of("gemma"), named("GemmaTokenizer"), ["replaced", "prepended"]), (of("gemma3_text"), None, ["replaced", "first"]),
            (of("gemma2"), named("GemmaTokenizerFast", unk_token={"__type": "AddedToken", "content": "<s>"}), ["replaced"]), (of("gemma2"), named("PreTrainedTokenizerFast"), ["first"])]
    out += [(of("qwen3"), named("Qwen2Tokenizer"), byte_level), (of("qwen3"), None, ["words", "nfc"]), (of("qwen3_5_text"), named("Qwen3_5Tokenizer"), byte_level[-3:]),
            (of("qwen2"), named("PreTrainedTokenizerFast"), ["words", "nfc"])]
    out += [(of("gpt2"), named("GPT2Tokenizer", add_prefix_space=prefix), byte_level[:3]) for prefix in (False, True)]
    out += [(of("phi"), named("CodeGenTokenizer"), ["bytes", "nfc"]), (of("gpt_neox"), named("GPTNeoXTokenizer"), byte_level[:4]), (of("olmo"), None, ["nfc", "bytes"]),
            (of("cohere"), named("CohereTokenizer"), byte_level[1:4])]
    return out


def main():
    models_ = make_models()
    made = files(models_)
    cases = [[name, config, tokenizer_config, *differences(made[name][1], config, tokenizer_config)]
             for config, tokenizer_config, names in folders() for name in names]
    for name, (model, spec) in made.items():
        spec["model"].update(vocab=model, merges=model)
        made[name] = {key: spec[key] for key in ("model", "normalizer", "pre_tokenizer", "post_processor", "decoder")}
    write(ROOT / "classes.json", {"files": made, "cases": cases})


if __name__ == "__main__":
    main()
