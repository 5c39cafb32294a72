#!/usr/bin/env python3
"""Training steps of nemocube against PyTorch + transformers, on the CPU, taking turns.

    python tools/compare_torch/compare.py --config MODEL_DIR --batch 4 --seq 512 --steps 6 --threads 2
    python tools/compare_torch/compare.py --config MODEL_DIR --ranks 2 --strategy fsdp2

Every measurement runs in processes of its own, in the order torch, nemocube, torch, nemocube, ..., so that
both suffer alike when the machine slows down for a while. The medians are over all timed steps of all rounds.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

SIDES = ("torch", "nemocube")


# ---------------------------------------------------------------------------- the torch side (child process)


def build_model(args):
    """A random model of the config's class, float32 weights, with the configured time step limit (see README)."""
    import torch
    from packaging.version import Version
    from transformers import AutoConfig, AutoModelForCausalLM, __version__, logging

    logging.set_verbosity_error()
    if Version(__version__) < Version("5.23.0"):
        raise SystemExit(f"transformers 5.23.0 or later is needed, this is {__version__}")
    torch.manual_seed(1111)
    config = AutoConfig.from_pretrained(args.config)
    config._attn_implementation = args.attention
    if hasattr(config, "num_experts_per_tok"):
        config._experts_implementation = args.experts
    model = AutoModelForCausalLM.from_config(config).float().train()
    for module in model.modules():
        if hasattr(module, "time_step_limit"):
            module.time_step_limit = tuple(float(v) for v in config.time_step_limit)
    return model


def divide(model, args):
    """The model as this rank trains it: whole, under DistributedDataParallel, or as FSDP2's shards of each block."""
    if args.strategy == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(model)
    if args.strategy == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (args.ranks,))
        for block in model.model.layers:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def torch_step(model, parameters, optimizer, ids, labels, dtype):
    """Forward, cross-entropy of shifted labels, backward, global norm clipping, fused AdamW; returns the loss."""
    import torch

    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
        logits = model(input_ids=ids, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    return loss.item()


def resident_bytes(field):
    """Resident memory of this process: now (VmRSS), or the largest so far (VmHWM)."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(rf"^{field}:\s*(\d+) kB$", status, re.MULTILINE).group(1)) * 1024


def timed_steps(args, rank):
    """What one rank reports: the seconds of every step, its losses, its memory."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    # All code is loaded before the model is.
    AutoModelForCausalLM._model_mapping[type(AutoConfig.from_pretrained(args.config))]  # noqa: B018
    code_bytes = resident_bytes("VmRSS")
    model = build_model(args)
    config = model.config
    # All ranks draw the same tokens, and each of them takes rows of its own.
    tokens = torch.randint(0, config.vocab_size, (args.batch, args.seq + 1)).chunk(args.ranks)[rank]
    ids, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    model = divide(model, args)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01, fused=True)
    stepper = torch.compile(model) if args.compile else model
    seconds, losses = [], []
    for _ in range(args.warmup + args.steps):
        start = time.perf_counter()
        losses.append(torch_step(stepper, parameters, optimizer, ids, labels, args.dtype))
        seconds.append(time.perf_counter() - start)
    return {
        "seconds": seconds,
        "losses": losses,
        "code_bytes": code_bytes,
        "peak_bytes": resident_bytes("VmHWM"),
        "attention": config._attn_implementation,
        "experts": getattr(config, "_experts_implementation", None) or "none",
        "parameters": sum(p.numel() for p in parameters),
    }


def run_torch_child(args):
    """Times the steps on one rank; rank 0 prints a line of JSON in the form of `nemocube bench step --json`."""
    import torch
    import transformers

    torch.set_num_threads(args.threads)
    torch.set_num_interop_threads(1)
    if args.ranks > 1:
        torch.distributed.init_process_group("gloo")
        rank = torch.distributed.get_rank()
        own, ranks = timed_steps(args, rank), [None] * args.ranks
        torch.distributed.all_gather_object(ranks, own)
        torch.distributed.destroy_process_group()
        if rank > 0:
            return
    else:
        own = timed_steps(args, rank=0)
        ranks = [own]
    slowest = max((r["seconds"] for r in ranks), key=lambda seconds: sum(seconds[args.warmup :]))
    timed = slowest[args.warmup :]
    result = {
        "step_seconds": timed,
        "warmup_seconds": slowest[: args.warmup],
        "tokens_per_second": args.batch * args.seq / statistics.median(timed),
        "code_bytes": sum(r["code_bytes"] for r in ranks),
        "peak_bytes_all_ranks": sum(r["peak_bytes"] for r in ranks),
        "attention": own["attention"],
        "experts": own["experts"],
        "parameters": own["parameters"],
        "losses": [statistics.mean(losses) for losses in zip(*(r["losses"] for r in ranks))],
        "ranks": ranks,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    print(json.dumps(result))


# ---------------------------------------------------------------------------- running the children


def torch_command(args):
    command = [sys.executable]
    if args.ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(args.ranks)]
    command += [os.path.abspath(__file__), "--torch-child"]
    for name in ("config", "batch", "seq", "steps", "warmup", "dtype", "threads", "attention", "experts", "ranks"):
        command += [f"--{name}", str(getattr(args, name))]
    if args.strategy:
        command += ["--strategy", args.strategy]
    return command + (["--compile"] if args.compile else [])


def nemocube_command(args):
    """`nemocube bench step`, which has no warm-up of its own: warm-up steps are asked for as steps, dropped later."""
    command = []
    if args.ranks > 1:
        command += ["mpirun", "-np", str(args.ranks), "--oversubscribe", "--bind-to", "none"]
    command += [str(args.nemocube), "bench", "step", "--config", str(args.config), "--json"]
    command += ["--batch", str(args.batch), "--seq", str(args.seq)]
    command += ["--steps", str(args.warmup + args.steps), "--dtype", args.dtype]
    if args.strategy:
        command += ["--set", f"distributed.strategy={args.strategy}"]
    return command + args.nemocube_args.split()


def run_child(command, threads):
    """The JSON of the last output line of one process."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    child = subprocess.run(command, stdout=subprocess.PIPE, env=environment, text=True)
    if child.returncode != 0:
        raise SystemExit(f"failed with code {child.returncode}: {' '.join(command)}\n{child.stdout}")
    lines = child.stdout.strip().splitlines()
    try:
        return json.loads(lines[-1])
    except (IndexError, ValueError):
        raise SystemExit(f"the last output line is not JSON: {' '.join(command)}\n{child.stdout}") from None


def measure(side, args):
    """One run of one side: {"seconds", "resident", "report"}."""
    report = run_child(torch_command(args) if side == "torch" else nemocube_command(args), args.threads)
    seconds = report["step_seconds"]
    if side == "nemocube":
        seconds = seconds[args.warmup :] if len(seconds) > args.steps else seconds
    return {"seconds": seconds, "resident": report["peak_bytes_all_ranks"], "report": report}


# ---------------------------------------------------------------------------- the report


def spread(seconds):
    """Half the range between the quartiles, relative to the median."""
    if len(seconds) < 4:
        return (max(seconds) - min(seconds)) / 2 / statistics.median(seconds)
    low, middle, high = statistics.quantiles(seconds, n=4)
    return (high - low) / 2 / middle


def side_summary(runs, tokens):
    """What is printed about one side."""
    seconds = [s for run in runs for s in run["seconds"]]
    median = statistics.median(seconds)
    return {
        "median_seconds": median,
        "fastest_seconds": min(seconds),
        "slowest_seconds": max(seconds),
        "spread": spread(seconds),
        "round_medians": [statistics.median(run["seconds"]) for run in runs],
        "tokens_per_second": tokens / median,
        "resident_bytes": max(run["resident"] for run in runs),
        "code_bytes": runs[-1]["report"].get("code_bytes"),
        "gemm_seconds": runs[-1]["report"].get("gemm_seconds"),
        "flops": runs[-1]["report"].get("flops"),
    }


def print_side(name, s):
    print(
        f"{name:9} {s['median_seconds']:9.4f} s a step  (fastest {s['fastest_seconds']:.4f}, slowest "
        f"{s['slowest_seconds']:.4f}, spread {100 * s['spread']:.1f} %)  {s['tokens_per_second']:9.1f} tokens/s  "
        f"{s['resident_bytes'] / 2**20:8.0f} MiB resident"
    )
    code = f"; {s['code_bytes'] / 2**20:.0f} MiB of it before a model exists" if s["code_bytes"] else ""
    print(f"{'':9} medians of the rounds: {', '.join(f'{m:.4f}' for m in s['round_medians'])}{code}")


def print_ratios(torch_side, nemocube_side):
    """torch / nemocube, for the median and for each pair of neighbouring runs."""
    time_ratio = torch_side["median_seconds"] / nemocube_side["median_seconds"]
    memory_ratio = torch_side["resident_bytes"] / nemocube_side["resident_bytes"]
    pairs = [t / n for t, n in zip(torch_side["round_medians"], nemocube_side["round_medians"])]
    print(f"torch / nemocube: time {time_ratio:.3f} (each round: {', '.join(f'{p:.3f}' for p in pairs)}), "
          f"memory {memory_ratio:.3f}")


def print_own_figures(s, several):
    """The figures that only nemocube reports."""
    if s["flops"]:
        print(f"nemocube  {s['flops'] / s['median_seconds'] / 1e9:.1f} GFLOP/s of model work")
    if s["gemm_seconds"]:
        share = s["gemm_seconds"] / s["median_seconds"]
        print(f"nemocube  {s['gemm_seconds']:.4f} s a step in matrix products{' of rank 0' if several else ''}, "
              f"{share:.2f} of its time")


def compare(args):
    """Runs all rounds and prints the comparison."""
    wanted = [args.only] if args.only else list(SIDES)
    if "nemocube" in wanted and not args.nemocube.is_file():
        raise SystemExit(f"no such program: {args.nemocube} (see --nemocube, or --only torch)")
    runs = {side: [] for side in wanted}
    for round_ in range(args.rounds):
        for side in wanted:
            runs[side].append(measure(side, args))
            median = statistics.median(runs[side][-1]["seconds"])
            print(f"round {round_ + 1} of {args.rounds}: {side} {median:.4f} s a step", file=sys.stderr, flush=True)
    summaries = {side: side_summary(runs[side], args.batch * args.seq) for side in wanted}
    threads = f"{args.threads} thread{'s' if args.threads > 1 else ''}"
    workers = f"{args.strategy} on {args.ranks} ranks of {threads}" if args.ranks > 1 else threads
    print(f"{args.config}: batch {args.batch}, {args.seq} tokens, {args.dtype}, {workers}, "
          f"{args.rounds} rounds of {args.steps} steps after {args.warmup}")
    if "torch" in wanted:
        report = runs["torch"][0]["report"]
        versions = ", ".join(f"{k} {v}" for k, v in report["versions"].items())
        print(f"{versions}, attention {report['attention']}, experts {report['experts']}"
              f"{', compiled' if args.compile else ''}, {report['parameters'] / 1e6:.1f} M parameters")
    for side in wanted:
        print_side(side, summaries[side])
    if len(wanted) == 2:
        print_ratios(summaries["torch"], summaries["nemocube"])
    if "nemocube" in wanted:
        print_own_figures(summaries["nemocube"], args.ranks > 1)
    if args.json:
        settings = {k: str(v) if isinstance(v, pathlib.Path) else v for k, v in vars(args).items()}
        args.json.write_text(json.dumps({"settings": settings, "summary": summaries, "runs": runs}, indent=1) + "\n")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=pathlib.Path, required=True, help="directory with the model's config.json")
    parser.add_argument("--batch", type=int, default=4, help="rows in a batch, of all ranks together")
    parser.add_argument("--seq", type=int, default=512, help="tokens in a row")
    parser.add_argument("--steps", type=int, default=6, help="timed steps in each round")
    parser.add_argument("--warmup", type=int, default=2, help="steps before the timed ones, in each round")
    parser.add_argument("--rounds", type=int, default=2, help="how often each side runs")
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32", help="bf16 in torch is autocast")
    parser.add_argument("--ranks", type=int, default=1, help="processes that share the batch: torchrun, mpirun")
    parser.add_argument("--strategy", choices=("ddp", "fsdp2"), help="how several ranks share the model")
    parser.add_argument("--threads", type=int, help="threads of each rank; default: 2 divided by --ranks")
    parser.add_argument("--compile", action="store_true", help="torch.compile the torch model")
    parser.add_argument("--attention", choices=("eager", "sdpa"), default="sdpa", help="attention of the torch model")
    parser.add_argument("--experts", choices=("eager", "batched_mm", "grouped_mm"), default="grouped_mm",
                        help="expert products of the torch model")
    parser.add_argument("--nemocube", type=pathlib.Path, default=pathlib.Path("build/nemocube"), help="the program")
    parser.add_argument("--nemocube-args", default="", help="further arguments for `nemocube bench step`")
    parser.add_argument("--only", choices=SIDES, help="run one side alone")
    parser.add_argument("--json", type=pathlib.Path, help="write all figures to this file")
    parser.add_argument("--torch-child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.threads is None:
        args.threads = max(1, 2 // max(1, args.ranks))
    if min(args.batch, args.seq, args.steps, args.rounds, args.threads, args.ranks) < 1 or args.warmup < 0:
        parser.error("--batch, --seq, --steps, --rounds, --threads and --ranks must be positive, --warmup not negative")
    if (args.ranks > 1) != (args.strategy is not None):
        parser.error("--strategy belongs to --ranks of 2 or more, and the other way round")
    if args.batch % args.ranks != 0:
        parser.error(f"--batch must be a multiple of --ranks, so that all rows weigh alike: {args.batch}, {args.ranks}")
    return args


def main():
    args = parse_arguments()
    run_torch_child(args) if args.torch_child else compare(args)


if __name__ == "__main__":
    main()
