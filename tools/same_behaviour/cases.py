"""What compare looks at: a case has a part, a name, and a function that measures one program in an empty folder.

A measure is a dictionary: name of an item to its text. Two programs behave alike where all items have the same
text.
"""

import json
import shutil
from collections import Counter
from pathlib import Path

from models import (CONFIGS, GOLDENS, ROOT, copy_golden, edit_config, edit_tensors, quantize, small_config, write_config,
                    write_json)
from program import TIMED_LINES, contents, digest, outcome

SHARED = ROOT.parent / "shared" / "data" / "family_configs"  # config.json files of other families, not in the repository


class Case:
    def __init__(self, part, name, measure):
        self.part, self.name, self.measure = part, name, measure


def merged(value, changes):
    """A recipe with changes: {"optimizer": {"lr": 0}} changes a key of a section, and None removes a key."""
    result = dict(value)
    for key, change in changes.items():
        inside = isinstance(change, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], change) if inside else change
        if change is None:
            del result[key]
    return result


# ---------------------------------------------------------------------------------------------------- recipes

FRESH = {"_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_config",
         "config": {"pretrained_model_name_or_path": "model"}, "torch_dtype": "f32"}
STORED = {"_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained", "pretrained_model_name_or_path": "model"}

RECIPE = {
    "seed": 7,
    "step_scheduler": {"global_batch_size": 16, "local_batch_size": 2, "max_steps": 4, "num_epochs": 1, "ckpt_every_steps": 2,
                       "val_every_steps": 2, "save_checkpoint_every_epoch": False},
    "model": FRESH,
    "checkpoint": {"enabled": True, "checkpoint_dir": "run"},
    "dataset": {"_target_": "mock", "vocab_size": 48, "seq_length": 32, "num_samples": 64},
    "validation_dataset": {"_target_": "mock", "vocab_size": 48, "seq_length": 32, "num_samples": 16},
    "optimizer": {"_target_": "torch.optim.AdamW", "lr": 0.01, "betas": [0.9, 0.98], "weight_decay": 0.1},
    "lr_scheduler": {"lr_decay_style": "cosine", "lr_warmup_steps": 1, "min_lr": 0.0001},
    "clip_grad_norm": {"max_norm": 1.0},
}

LORA = {"peft": {"target_modules": ["*_proj", "lm_head"], "dim": 4, "dropout": 0.1}}
LORA_ALL = {"peft": {"match_all_linear": True, "dim": 4, "alpha": 8, "moe_rank_scaling": True}}
LORA_EXPERTS = {"peft": {"target_modules": ["*.mixer.experts", "*.in_proj"], "dim": 2,
                         "use_rslora": True, "lora_dtype": "f32"}}
FROZEN = {"freeze": ["backbone.embeddings", "*.mixer.experts", "backbone.layers.0"]}
FROZEN_FRONT = {"freeze": ["model.layers.0", "model.layers.1", "model.layers.2", "lm_head"]}
ROUTED = {"model": {"moe": {"aux_loss_coeff": 0.01, "z_loss_coeff": 0.001, "expert_bias_update_rate": 0.001}}}
REPEATED = {"model": {"num_nextn_predict_layers": 2, "mtp_use_repeated_layer": True, "mtp_loss_scaling_factor": 0.3}}
TWO_DEPTHS = {"model": {"num_nextn_predict_layers": 2, "mtp_use_repeated_layer": False}}
BF16 = {"model": {"torch_dtype": "bf16"}}


def distributed(**keys):
    return {"distributed": keys}


def pipeline(schedule="1f1b", pp=2, **keys):
    more = {key: keys.pop(key) for key in ("layers_per_stage", "module_fqns_per_model_part", "block_weights") if key in keys}
    return distributed(pp_size=pp, pipeline={"pp_schedule": schedule, "pp_microbatch_size": 1, **more}, **keys)


ZERO = "megatron_fsdp"
# Name of a layout to its ranks and section: those of tests/parallel/layouts_test.cpp first.
LAYOUTS = {
    "one": (1, {}),
    "ddp": (2, distributed(strategy="ddp")),
    "zero 3": (2, {}),
    "zero 1": (4, distributed(strategy=ZERO, zero_dp_strategy=1)),
    "zero 2": (4, distributed(strategy=ZERO, zero_dp_strategy=2)),
    "hsdp": (4, distributed(dp_replicate_size=2)),
    "tp, sequence parallel": (2, distributed(tp_size=2, sequence_parallel=True)),
    "tp 4, expert tp": (4, distributed(tp_size=4, ep_size=2, expert_tp_size=2)),
    "tp, cp, ep": (4, distributed(tp_size=2, cp_size=2, ep_size=2)),
    "zbv": (2, pipeline("zbv")),
    "1f1b, ep": (4, pipeline(ep_size=2)),
    "ep": (2, distributed(ep_size=2)),
}
MORE_LAYOUTS = {
    "tp": (2, distributed(tp_size=2, tp_cross_entropy="off")),
    "cp": (2, distributed(cp_size=2)),
    "cp, allgather": (2, distributed(cp_size=2, cp_comm_type="all_gather")),
    "pp": (2, pipeline("gpipe")),
    "interleaved": (4, pipeline("interleaved1f1b", layers_per_stage=2)),
    "pp by weights": (2, pipeline(block_weights={"moe": 7, "mamba": 1})),
    "recomputed": (2, distributed(activation_checkpointing=True, tp_size=2)),
    "8: tp, pp, ep": (8, pipeline(tp_size=2, ep_size=2)),
    "8: cp, pp, ep": (8, pipeline("interleavedzerobubble", layers_per_stage=2, cp_size=2, ep_size=4)),
    "8: ep": (8, distributed(ep_size=8)),
    "16: all": (16, pipeline(tp_size=2, cp_size=2, ep_size=4, sequence_parallel=True)),
}

# ---------------------------------------------------------------------------------------- plan, inspect, grid

# Name of a recipe to the name of its model (CONFIGS) and its changes.
PLANNED = {
    **{name: (name, {}) for name in CONFIGS if name not in ("listed", "quantized")},
    "routed": ("mixed", ROUTED),
    "bf16": ("mixed", BF16),
    "sgd": ("mixed", {"optimizer": {"_target_": "torch.optim.SGD", "betas": None, "momentum": 0.9}}),
    "packed": ("listed", {"packed_sequence": {"packed_sequence_size": 64}}),
    "frozen": ("mixed", FROZEN),
    "frozen front": ("listed", FROZEN_FRONT),
    "lora": ("mixed", {"model": {**STORED, "config": None}, **LORA}),
    "lora all": ("moe_latent", {"model": {**STORED, "config": None}, **LORA_ALL}),
    "lora experts": ("pruned", {"model": {**STORED, "config": None}, **LORA_EXPERTS}),
    "lora quantized": ("quantized", {"model": {**STORED, "config": None}, **LORA}),
    "mtp repeated": ("mixed", REPEATED),
    "mtp pruned": ("pruned", REPEATED),
    "mtp frozen": ("mtp", {**FROZEN, **TWO_DEPTHS}),
    "mtp lora": ("mtp", {"model": {**STORED, "config": None, "num_nextn_predict_layers": 2}, **LORA_ALL}),
}


def planned(model, changes, ranks, layout):
    def measure(program, folder):
        write_config(folder / "model", model)
        write_json(folder / "recipe.yaml", merged(merged(RECIPE, changes), layout))
        command = ["plan", "recipe.yaml", "--ranks", ranks]
        json_form, text = program.run(folder, [*command, "--json"]), program.run(folder, [*command, "--gpu", "h200"])
        return {**prefixed("json", outcome(json_form)), **prefixed("text", outcome(text))}
    return measure


def checked(model, changes, ranks, layout):
    def measure(program, folder):
        write_config(folder / "model", model)
        write_json(folder / "recipe.yaml", merged(merged(RECIPE, changes), layout))
        return outcome(program.run(folder, ["train", "--check", "recipe.yaml", "--ranks", ranks]))
    return measure


def planned_shipped(recipe, ranks, changes):
    def measure(program, folder):
        shutil.copytree(ROOT / "configs" / "nemotron_3_nano", folder / "model")
        shutil.copy(ROOT / "configs" / "recipes" / recipe, folder / "recipe.yaml")
        sets = [word for change in ("model.pretrained_model_name_or_path=model", *changes) for word in ("--set", change)]
        command = ["plan", "recipe.yaml", "--ranks", ranks, *sets]
        json_form, text = program.run(folder, [*command, "--json"]), program.run(folder, command)
        return {**prefixed("json", outcome(json_form)), **prefixed("text", outcome(text))}
    return measure


def prefixed(prefix, items):
    return {f"{prefix}: {name}": text for name, text in items.items()}


def plan_cases():
    for recipe, (model, changes) in PLANNED.items():
        for layout, (ranks, section) in {**LAYOUTS, **MORE_LAYOUTS}.items():
            yield Case("plan", f"{recipe} / {layout}", planned(model, changes, ranks, section))
        for layout in ("one", "tp, cp, ep", "1f1b, ep"):
            yield Case("plan", f"check {recipe} / {layout}", checked(model, changes, *LAYOUTS[layout]))
    for ranks in (8, 16, 24):
        for name, changes in {"plain": [], "lora": ["peft.match_all_linear=true"],
                              "frozen": ["freeze=['*.mixer.experts']"],
                              "sp": ["distributed.tp_size=2", "distributed.sequence_parallel=true"]}.items():
            yield Case("plan", f"Nano on nodes, {name} / {ranks}",
                       planned_shipped("nemotron_3_nano_nodes.yaml", ranks, changes))
            yield Case("plan", f"Nano on SQuAD, {name} / {ranks}",
                       planned_shipped("nemotron_nano_v3_pp_ep_squad.yaml", ranks, changes))


def golden_folders():
    return sorted(path.parent.relative_to(GOLDENS) for path in GOLDENS.rglob("config.json"))


def inspected(prepare, named="model"):
    def measure(program, folder):
        prepare(folder / "model")
        command = ["inspect", "--model", named]
        return {**prefixed("json", outcome(program.run(folder, [*command, "--json"]))),
                **prefixed("text", outcome(program.run(folder, command)))}
    return measure


def file_as(path):
    def prepare(folder):
        folder.mkdir()
        shutil.copy(path, folder / "config.json")
    return prepare


def inspect_cases():
    for name in CONFIGS:
        yield Case("inspect", name, inspected(lambda folder, name=name: write_config(folder, name)))
    for name in golden_folders():
        yield Case("inspect", f"golden {name}", inspected(file_as(GOLDENS / name / "config.json")))
    for path in sorted((ROOT / "configs").glob("*/config.json")):
        yield Case("inspect", path.parent.name, inspected(file_as(path), "model/config.json"))
    if SHARED.is_dir():
        for path in sorted(SHARED.glob("*.json")):
            yield Case("inspect", f"family {path.stem}", inspected(file_as(path)))


def without_cases():
    """Why some cases are not there."""
    if not SHARED.is_dir():
        yield "inspect: no configs of other families: ../shared/data/family_configs is not there"


GRIDS = [
    ("tp=2",), ("tp=1,cp=1,dp=1,pp=1",), ("tp=2,cp=2,dp=2,pp=2",), ("tp=4,cp=1,dp=8,pp=2", "--groups", "tp,pp", "dp"),
    ("tp=2,cp=1,dp=4", "--view", "expert:expt_tp=1,ep=4,expt_dp=2", "--groups", "expert:ep"),
    ("tp=2,cp=1,dp=4,pp=2", "--view", "expert:expt_tp=2,ep=2,expt_dp=2,pp=2", "--shared", "pp", "--groups", "expert:ep,pp",
     "expert:expt_dp"),
    ("tp=2,dp=3", "--offset", "5"), ("tp=2,dp=3", "--offset", "2", "--world", "16"), ("tp=8,dp=256,pp=16",),
    ("tp=3,cp=5,dp=7",), ("dp=2,tp=2", "--groups", "tp", "dp", "dp,tp"), ("ep=4,dp=2",), ("tp=2,dp=4,pp=2", "--offset", "8"),
    # refused
    ("tp",), ("tp=0",), ("tp=2,tp=3",), ("tp=2", "--groups", "pp"), ("tp=x",), ("tp=2,dp=3", "--world", "5"),
    ("tp=2,dp=4", "--view", "expert:ep=3"), ("tp=2", "--offset", "-1"), ("tp=2147483647,dp=2147483647",),
    ("tp=2,dp=4", "--view", "expert"), ("tp=2048,dp=4096", "--json"),
]
SCHEDULES = [(schedule, pp, microbatches) for schedule in ("gpipe", "1f1b", "interleaved1f1b", "interleavedzerobubble", "zbv")
             for pp, microbatches in ((1, 1), (2, 4), (4, 8))]


def printed(*commands):
    def measure(program, folder):
        return {item: text for number, words in enumerate(commands)
                for item, text in prefixed(f"command {number + 1}", outcome(program.run(folder, words))).items()}
    return measure


def grid_cases():
    for words in GRIDS:
        text = ["grid", *words]
        yield Case("grid", " ".join(words), printed(text, text if "--json" in words else [*text, "--json"]))
    for schedule, pp, microbatches in SCHEDULES:
        yield Case("grid", f"schedule {schedule} {pp} {microbatches}",
                   printed(["plan", "--schedule", schedule, "--pp", pp, "--microbatches", microbatches]))


# ---------------------------------------------------------------------------------------------- stored models

def stored_model(prepare):
    """Everything that reads or writes the weights of a model without training."""
    def measure(program, folder):
        prepare(folder / "model")
        items = {}

        def run(name, words, made=()):
            items.update(prefixed(name, outcome(program.run(folder, words))))
            for target in made:
                files = {target: digest((folder / target).read_bytes())} if (folder / target).is_file() else \
                    contents(program, folder, folder / target)
                items.update(prefixed(name, files))

        run("convert", ["convert", "model", "copy"], ["copy"])
        run("convert to bf16", ["convert", "model", "bf16", "--dtype", "bf16", "--max-shard-gb", "0.00002"], ["bf16"])
        if (folder / "model" / "input.safetensors").exists():
            run("forward", ["forward", "--model", "model", "--input", "model/input.safetensors", "--output", "out.safetensors"],
                ["out.safetensors"])
        return items
    return measure


def golden_weights(name, change=None):
    def prepare(folder):
        copy_golden(folder, name)
        if change:
            change(folder)
    return prepare


def stored_cases():
    for name in golden_folders():
        if list((GOLDENS / name).glob("model*.safetensors")):
            yield Case("stored", f"golden {name}", stored_model(golden_weights(name)))
    for scheme in ("FP8", "NVFP4"):
        yield Case("stored", f"quantized {scheme}",
                   stored_model(golden_weights("all_four", lambda folder, scheme=scheme: quantize(folder, scheme))))


# --------------------------------------------------------------------------------------------------- training

def lasting(text):
    """Without the lines of a log that tell of times, or that come once in a while."""
    return "\n".join(line for line in text.splitlines() if not line.startswith(TIMED_LINES))


def fresh(name):
    return lambda folder: write_config(folder, name)


def trained(prepare, changes, ranks=1, layout={}, more=()):
    """A run from a recipe, and commands on what it leaves behind."""
    def measure(program, folder):
        prepare(folder / "model")
        write_json(folder / "recipe.yaml", merged(merged(RECIPE, changes), layout))
        result = program.run(folder, ["train", "recipe.yaml"], ranks if ranks > 1 else None)
        items = {"exit code": str(result.code), "standard error": lasting(result.err),
                 **contents(program, folder, folder / "run")}
        for words in more:
            items.update(prefixed(" ".join(words), outcome(program.run(folder, words))))
            if words[0] == "convert":
                items.update(contents(program, folder, folder / words[2]))
        return items
    return measure


ON_GOLDEN = {"model": {**STORED, "config": None, "torch_dtype": None}, "step_scheduler": {"global_batch_size": 8}}


def on_golden(*changes):
    result = ON_GOLDEN
    for change in changes:
        result = merged(result, change)
    return result


INSPECT = (["inspect", "run"], ["inspect", "run", "--json"])
MERGE = (["convert", "run", "merged", "--merge"], *INSPECT)
# Name to the arguments of trained().
RUNS = {
    "f32": (fresh("mixed"), ROUTED, 1, {}, INSPECT),
    "bf16": (fresh("mixed"), merged(ROUTED, BF16)),
    "mamba and attention, sgd": (fresh("listed"), PLANNED["sgd"][1]),
    "latent experts, bf16, recomputed": (fresh("moe_latent"), merged(BF16, distributed(activation_checkpointing=True))),
    "pruned": (fresh("pruned"), ROUTED, 1, {}, INSPECT),
    "biases, groups of experts": (fresh("moe_groups"), {}),
    "quantized": (golden_weights("all_four", lambda folder: quantize(folder, "FP8")), on_golden(), 1, {}, INSPECT),
    "ddp": (fresh("mixed"), ROUTED, *LAYOUTS["ddp"]),
    "zero 1": (fresh("mixed"), {}, *LAYOUTS["zero 1"]),
    "zero 2, bf16": (fresh("mixed"), BF16, *LAYOUTS["zero 2"]),
    "zero 3": (fresh("biases"), {}, *LAYOUTS["zero 3"]),
    "zero 3, bf16": (fresh("mixed"), merged(ROUTED, BF16), *LAYOUTS["zero 3"]),
    "tp, sequence parallel": (fresh("mixed"), {}, *LAYOUTS["tp, sequence parallel"]),
    "tp, cp, ep, bf16": (fresh("mixed"), BF16, *LAYOUTS["tp, cp, ep"]),
    "expert tp": (fresh("moe_latent"), {}, *LAYOUTS["tp 4, expert tp"]),
    "zbv": (fresh("mixed"), {}, *LAYOUTS["zbv"]),
    "1f1b, ep": (fresh("mixed"), ROUTED, *LAYOUTS["1f1b, ep"]),
    "cp": (fresh("mixed"), {}, *MORE_LAYOUTS["cp"]),
    "frozen": (fresh("mixed"), FROZEN, 1, {}, INSPECT),
    "frozen, zero 3": (golden_weights("train20"), on_golden(FROZEN_FRONT), *LAYOUTS["zero 3"]),
    "lora": (golden_weights("peft_training"), on_golden(LORA), 1, {}, MERGE),
    "lora of all, tp": (golden_weights("train20"), on_golden(LORA_ALL), *LAYOUTS["tp, sequence parallel"], MERGE),
    "lora of experts, ep": (golden_weights("train20"), on_golden(LORA_EXPERTS), *LAYOUTS["ep"], MERGE),
    "mtp": (fresh("mtp"), TWO_DEPTHS, 1, {}, INSPECT),
    "mtp, stored": (golden_weights("mtp/two"), on_golden({"model": {"num_nextn_predict_layers": 2}})),
    "mtp repeated, pipeline": (fresh("mixed"), REPEATED, *LAYOUTS["1f1b, ep"]),
    "mtp, lora": (golden_weights("mtp/two"), on_golden(LORA_ALL, {"model": {"num_nextn_predict_layers": 2}}), 1, {}, MERGE),
}


def train_cases():
    for name, arguments in RUNS.items():
        yield Case("train", name, trained(*arguments))


def counted(changes, ranks, layout):
    """Calls and bytes of each operation of each group, from a profile of all steps. Between steps lie validation
    and saving."""
    def measure(program, folder):
        write_config(folder / "model", "mixed")
        write_json(folder / "recipe.yaml", merged(merged(RECIPE, changes), layout))
        result = program.run(folder, ["train", "recipe.yaml", "--profile", "steps=0-3"], ranks if ranks > 1 else None)
        items = {"exit code": str(result.code), "standard error": lasting(result.err)}
        traces = sorted((folder / "run").rglob("profile/*.json"))
        if result.code != 0 or not traces:
            return items
        trace = json.loads(traces[0].read_text())
        calls, sent = Counter(), Counter()
        for event in trace["traceEvents"]:
            if event.get("cat") == "collective":
                key = f"rank {event['pid']:2d} {event['args']['group']} {event['name']}"
                calls[key] += 1
                sent[key] += event["args"]["bytes"]
        items["calls and bytes"] = "\n".join(f"{key}: {calls[key]} calls, {sent[key]} bytes" for key in sorted(calls))
        items["all bytes"] = json.dumps([trace["otherData"][key] for key in ("collective_bytes", "dropped_events")])
        return items
    return measure


def comm_cases():
    for layout, (ranks, section) in LAYOUTS.items():
        yield Case("comm", layout, counted(ROUTED, ranks, section))
    for layout in ("cp", "interleaved"):
        yield Case("comm", layout, counted(ROUTED, *MORE_LAYOUTS[layout]))
    yield Case("comm", "mtp on a pipeline", counted(REPEATED, *LAYOUTS["1f1b, ep"]))
    yield Case("comm", "frozen, tp", counted(FROZEN, *LAYOUTS["tp, sequence parallel"]))


# --------------------------------------------------------------------------------------------------- mistakes

def refused(words, prepare=golden_weights("train20"), changes=ON_GOLDEN, ranks=None):
    """A command that ends with an error, in a folder with a model and a recipe."""
    def measure(program, folder):
        prepare(folder / "model")
        write_json(folder / "recipe.yaml", merged(RECIPE, changes))
        items = outcome(program.run(folder, words, ranks))
        return {**items, "files": "\n".join(sorted(str(path.relative_to(folder)) for path in folder.rglob("*")))}
    return measure


def edited(name="all_four", **changes):
    return golden_weights(name, lambda folder: edit_config(folder, **changes))


def damaged(edit):
    return golden_weights("all_four", lambda folder: edit_tensors(folder, edit))


def renamed(old, new):
    def edit(tensors):
        tensors[new] = tensors.pop(old)
    return edit


def reshaped(name, shape):
    def edit(tensors):
        dtype, _, data = tensors[name]
        tensors[name] = (dtype, shape, data)
    return edit


FORWARD = ["forward", "--model", "model", "--input", "model/input.safetensors", "--output", "out.safetensors"]
CHECK = ["train", "--check", "recipe.yaml"]
EMBEDDINGS = "backbone.embeddings.weight"


def error_cases():
    def case(name, *arguments, **keys):
        return Case("errors", name, refused(*arguments, **keys))

    for key, value in {
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "layers_block_type": ["mamba", "magic"],
            "num_attention_heads": 3, "num_key_value_heads": 3, "mamba_num_heads": 5, "n_groups": 0, "num_experts_per_tok": 9,
            "n_group": 3, "vocab_size": -1, "hidden_size": "32", "tie_word_embeddings": True, "mlp_hidden_act": "gelu",
            "torch_dtype": "int8", "per_layer_config": [{"vocab_size": 1}], "intermediate_size": [48, 64],
            "quantization_config": {"quant_method": "awq"}, "llm_config": {"model_type": "llama"}, "hidden_dropout": 0.5,
            "moe_latent_size": 0, "time_step_limit": [3, 1], "eos_token_id": 100000, "head_dim": None}.items():
        yield case(f"config: {key}", FORWARD, edited(**{key: value}))
    yield case("config: of another size", FORWARD, edited(hidden_size=64))
    yield case("config: of more layers", FORWARD, edited(layers_block_type=["mamba", "moe", "attention", "mlp", "mamba", "moe"]))
    yield case("weights: one missing", FORWARD, damaged(lambda tensors: tensors.pop("backbone.norm_f.weight")))
    yield case("weights: an expert missing", FORWARD,
               damaged(lambda tensors: tensors.pop(next(name for name in tensors if ".experts." in name))))
    yield case("weights: renamed", FORWARD, damaged(renamed("lm_head.weight", "extra.weight")))
    yield case("weights: a block too many", FORWARD,
               damaged(lambda tensors: tensors.update({"backbone.layers.9.norm.weight": tensors["backbone.layers.0.norm.weight"]})))
    yield case("weights: transposed", FORWARD, damaged(reshaped(EMBEDDINGS, [32, 96])))
    yield case("weights: a scale without codes", FORWARD,
               damaged(lambda tensors: tensors.update({"lm_head.weight_scale": ("F32", [], b"\0\0\0\0")})))
    for name, changes in {
            "freeze: nothing fits": {"freeze": ["backbone.layers.44"]},
            "freeze: another spelling": {"freeze": ["model.embed_token"]},
            "freeze: a near name": {"freeze": ["*.mixer.expert"]},
            "freeze: everything": {"freeze": ["*"]},
            "peft: nothing fits": {"peft": {"target_modules": ["q_prj"]}},
            "peft: no linear layer": {"peft": {"target_modules": ["*.norm"]}},
            "peft: exclude nothing": {"peft": {"match_all_linear": True, "exclude_modules": ["*.zzz"]}},
            "peft: rank": {"peft": {"match_all_linear": True, "dim": 0}},
            "peft: no such adapter": {"peft": {"match_all_linear": True, "adapter_path": "nowhere"}},
            "optimizer: group without parameters": {"optimizer": {"param_group_overrides": [{"pattern": "layernorm"}]}},
            "mtp: fresh depths": {"model": {"num_nextn_predict_layers": 3}},
            "model: not there": {"model": {"pretrained_model_name_or_path": "./nope"}}}.items():
        yield case(name, CHECK, changes=on_golden(changes))
    for name, (ranks, changes) in {
            "ranks: tp does not divide": (3, distributed(tp_size=3)),
            "ranks: ep does not divide": (5, distributed(ep_size=5)),
            "ranks: more stages than blocks": (8, pipeline(pp=8)),
            "ranks: parts name no block": (2, pipeline(module_fqns_per_model_part=[["backbone.embeddings"], ["lm_had"]])),
            "ranks: parts leave a block out": (2, pipeline(module_fqns_per_model_part=[
                ["backbone.embeddings", "backbone.layers.0"], ["backbone.layers.2", "backbone.norm_f", "lm_head"]])),
            "ranks: tp_plan fits nothing": (2, distributed(tp_size=2, tp_plan={"model.layers.*.zzz": "colwise"})),
            "ranks: tp_plan of another style": (2, distributed(tp_size=2, tp_plan={"lm_head": "rowwise"})),
            "ranks: cp and mtp": (2, {**distributed(cp_size=2), **REPEATED})}.items():
        yield case(name, [*CHECK, "--ranks", ranks], changes=on_golden(changes))
    yield case("weights: one missing, on two ranks", ["train", "recipe.yaml"],
               golden_weights("train20", lambda folder: edit_tensors(folder, lambda tensors: tensors.pop("lm_head.weight"))),
               ranks=2)
    yield case("convert: an adapter without its model", ["convert", "model", "out", "--adapter", "nowhere", "--merge"])


def all_cases():
    return [*plan_cases(), *inspect_cases(), *grid_cases(), *stored_cases(), *comm_cases(), *train_cases(), *error_cases()]


PARTS = {
    "plan": "plan --json and plan, of each pair of a recipe and a layout, and train --check of some",
    "inspect": "inspect --model, with and without --json, of each config.json",
    "grid": "grid, with and without --json, and plan --schedule",
    "stored": "copies that convert makes of stored models, and logits of forward",
    "comm": "calls and bytes of each operation in each group of ranks, in runs of four steps with validation and checkpoints",
    "train": "all files of short runs, their checkpoints and losses, and what is said; merged adapters",
    "errors": "messages about bad inputs, and that nothing is written",
}
