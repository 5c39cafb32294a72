"""Hugging Face NemotronHForCausalLM as a numerical oracle, in float64.

The model is read from a directory by `from_pretrained`, so that names and layouts of the files are
judged by Hugging Face and not by this script. Five settings make it the published mathematics:

* eager attention and eager experts: plain torch operations only;
* `mixer.time_step_limit` is set to the configured `time_step_limit`. The class itself takes
  (time_step_min, inf) and thereby clamps small time steps, which no NemotronH training does;
* each block is built from its own config, `config.per_layer_config[i]`. transformers 5.23.0 reads and writes
  `per_layer_config`, but its NemotronHModel gives all blocks the config of the whole, and refuses where they differ;
* unpadded batches: no attention mask;
* float64: `model.double()` alone is not enough, because the class casts to float32 in the norms,
  the router, the scan, the softmax and the logits. `widened` turns those casts into casts to float64.
"""

import contextlib
import math

import torch
import torch.nn.functional as F
import transformers
from packaging.version import Version
from transformers import NemotronHForCausalLM
from transformers.models.nemotron_h import modeling_nemotron_h

OLDEST_TRANSFORMERS = "5.23.0"  # older releases scan wrongly across chunks
IGNORED = -100


def build_blocks_from_their_configs():
    """From now on each block of a model has its own config; without per_layer_config that is the model's."""
    build = modeling_nemotron_h.NemotronHBlock.__init__

    def build_from_own(block, config, layer_idx):
        build(block, config.per_layer_config[layer_idx], layer_idx)

    modeling_nemotron_h.NemotronHBlock.__init__ = build_from_own


def check_version():
    """Stops with a message when transformers is too old to be an oracle."""
    if Version(transformers.__version__) < Version(OLDEST_TRANSFORMERS):
        raise SystemExit(
            f"transformers {OLDEST_TRANSFORMERS} or later is needed, this is {transformers.__version__}: "
            "older releases compute the Mamba-2 scan wrongly across chunks"
        )


def prepare_process():
    """One thread and deterministic kernels: the same bytes on every run."""
    check_version()
    build_blocks_from_their_configs()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


class _TorchWithWideFloat32:
    """The torch module with one difference: `float32` is float64."""

    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@contextlib.contextmanager
def widened():
    """Inside this context the model's casts to float32 are casts to float64."""
    modeling_nemotron_h.torch = _TorchWithWideFloat32()
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        modeling_nemotron_h.torch = torch
        del torch.Tensor.float  # uncovers the inherited method


def precision(dtype):
    """The context in which a model of this dtype computes in this dtype throughout."""
    return widened() if dtype == torch.float64 else contextlib.nullcontext()


def mixers(model, class_name):
    """The modules of one class, in model order."""
    return [m for m in model.modules() if type(m).__name__ == class_name]


def load(directory, dtype):
    """The model of a directory, every stored value exact in `dtype` (float32 or float64)."""
    model, info = NemotronHForCausalLM.from_pretrained(
        directory,
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",
        output_loading_info=True,
    )
    problems = {key: value for key, value in info.items() if value}
    if problems:
        raise RuntimeError(f"{directory}: Hugging Face did not load every tensor: {problems}")
    for mixer in mixers(model, "NemotronHMamba2Mixer"):
        low, high = mixer.config.time_step_limit
        mixer.time_step_limit = (float(low), float(high))
    return model.to(dtype).train()


def token_loss_sum(logits, labels):
    """Sum of the cross-entropies of the labelled tokens; labels are already shifted."""
    return F.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), ignore_index=IGNORED, reduction="sum"
    )


def mean_loss(logits, labels):
    """Mean of the cross-entropies of the labelled tokens."""
    return token_loss_sum(logits, labels) / (labels != IGNORED).sum()


def logits_of(model, input_ids):
    """Logits of an unpadded batch, in the dtype of the model."""
    logits = model(input_ids=input_ids, use_cache=False).logits
    assert logits.dtype == model.lm_head.weight.dtype, "a cast of the model was not widened"
    return logits


def forward_backward(model, input_ids, labels):
    """(logits, mean loss over labelled tokens, {parameter name: gradient}) of one batch."""
    model.zero_grad(set_to_none=True)
    with precision(model.lm_head.weight.dtype):
        logits = logits_of(model, input_ids)
        loss = mean_loss(logits, labels)
        loss.backward()
    grads = {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in model.named_parameters()
    }
    return logits.detach(), loss.detach(), grads


def selection_gap(router, router_logits):
    """Smallest distance, over the tokens, by which a router's choice of groups and experts is decided."""
    scores = router_logits.double().sigmoid() + router.e_score_correction_bias.double()
    tokens, experts = scores.shape
    gap = math.inf
    if router.topk_group < router.num_group:
        groups = scores.view(tokens, router.num_group, -1)
        group_scores = groups.topk(2, dim=-1)[0].sum(-1)
        ranked, order = group_scores.sort(dim=-1, descending=True)
        gap = (ranked[:, router.topk_group - 1] - ranked[:, router.topk_group]).min().item()
        dropped = torch.zeros_like(group_scores, dtype=torch.bool).scatter_(1, order[:, router.topk_group :], True)
        scores = groups.masked_fill(dropped[..., None], -math.inf).view(tokens, experts)
    ranked = scores.sort(dim=-1, descending=True)[0]
    if router.top_k < experts:
        gap = min(gap, (ranked[:, router.top_k - 1] - ranked[:, router.top_k]).min().item())
    return gap


@contextlib.contextmanager
def watch_routing(model):
    """Yields a list that collects the selection gap of every router call in the context."""
    gaps = []

    def note(router, _inputs, outputs):
        gaps.append(selection_gap(router, outputs[0].detach()))

    hooks = [r.register_forward_hook(note) for r in mixers(model, "NemotronHTopkRouter")]
    try:
        yield gaps
    finally:
        for hook in hooks:
            hook.remove()


def routing_gap(model, input_ids):
    """Smallest selection gap of the model on a batch; infinite without routers."""
    with watch_routing(model) as gaps, torch.no_grad(), precision(model.lm_head.weight.dtype):
        logits_of(model, input_ids)
    return min(gaps, default=math.inf)
