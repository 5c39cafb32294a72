#!/usr/bin/env python3
"""Writes tests/goldens/quantized: matrices of codes with their scales, and the values that PyTorch makes of them.

    python3 -m venv VENV && VENV/bin/pip install -r tools/goldens/requirements.txt
    VENV/bin/python tools/goldens/make_quantized.py

codes.safetensors       `NAME.weight` and its scales, in the forms of ModelOpt and DeepSeek
values.safetensors      `NAME.weight` in f32
The codes of NVFP4 are made as ModelOpt makes them: a block's scale is its largest element by 6 scale_2, and an element is the
nearest code, ties to the even one.
"""
import pathlib

import torch
from safetensors.torch import save_file

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "goldens" / "quantized"
E4M3 = torch.float8_e4m3fn
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])

codes, values = {}, {}


def add_fp8(name, weight, scale, spread, suffix="weight_scale"):
    """`spread` brings the scales to the shape of the weight, or to one that broadcasts to it."""
    q = (weight / spread(scale)).clamp(-448, 448).to(E4M3)
    codes[f"{name}.weight"], codes[f"{name}.{suffix}"] = q, scale
    values[f"{name}.weight"] = q.float() * spread(scale)


def block_scales(weight):
    rows, columns = -(-weight.shape[0] // 128), -(-weight.shape[1] // 128)
    blocks = [[weight[128 * i : 128 * i + 128, 128 * j : 128 * j + 128].abs().max() / 448 for j in range(columns)]
              for i in range(rows)]
    return torch.tensor(blocks)


def over_blocks(weight):
    shape = weight.shape
    return lambda s: s.reshape(-(-shape[0] // 128), -1).repeat_interleave(128, 0).repeat_interleave(128, 1)[: shape[0], : shape[1]]


def add_nvfp4(name, weight):
    rows, columns = weight.shape
    blocks = -(-columns // 16)
    scale_2 = weight.abs().max() / (6 * 448)
    padded = torch.nn.functional.pad(weight, (0, 16 * blocks - columns)).reshape(rows, blocks, 16)
    scale = (padded.abs().amax(-1) / (6 * scale_2)).to(E4M3)
    factor = (scale.float() * scale_2).unsqueeze(-1)
    wanted = torch.where(factor > 0, padded / factor, padded.new_zeros(()))
    distance = (wanted.abs().clamp(max=6).unsqueeze(-1) - E2M1).abs()
    # Of two codes equally near, the even one: its distance counts as a little less.
    distance = distance - 1e-6 * (torch.arange(8) % 2 == 0)
    nibble = distance.argmin(-1) + 8 * (wanted < 0)
    decoded = E2M1[nibble % 8] * torch.where(nibble >= 8, -1.0, 1.0) * factor
    nibble = nibble.reshape(rows, -1)[:, :columns].to(torch.uint8)
    codes[f"{name}.weight"] = nibble[:, 0::2] | (nibble[:, 1::2] << 4)
    codes[f"{name}.weight_scale"], codes[f"{name}.weight_scale_2"] = scale, scale_2
    values[f"{name}.weight"] = decoded.reshape(rows, -1)[:, :columns]


def main():
    torch.manual_seed(7)
    every = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    every[[0x7F, 0xFF]] = 0  # NaN, whose other bits are nobody's promise
    every = every.view(E4M3).reshape(16, 16)
    codes["table.weight"], codes["table.weight_scale"] = every, torch.tensor(1.0)
    values["table.weight"] = every.float()

    weight = torch.randn(20, 24) * 0.02
    add_fp8("tensor", weight, weight.abs().max() / 448, lambda s: s)
    add_fp8("tensor_of_one", weight, (weight.abs().max() / 300).reshape(1), lambda s: s)
    add_fp8("rows", weight, weight.abs().amax(1) / 448, lambda s: s.unsqueeze(1))
    weight = torch.randn(130, 140) * torch.rand(130, 1)
    add_fp8("blocks", weight, block_scales(weight).reshape(2, 1, 2, 1), over_blocks(weight))
    add_fp8("blocks_inv", weight, block_scales(weight), over_blocks(weight), "weight_scale_inv")
    add_nvfp4("nvfp4", torch.randn(7, 64) * torch.rand(7, 1))
    add_nvfp4("nvfp4_partial", torch.randn(5, 38))

    OUT.mkdir(parents=True, exist_ok=True)
    for file, tensors in (("codes", codes), ("values", values)):
        save_file({name: t.contiguous() for name, t in tensors.items()}, OUT / f"{file}.safetensors")
        (OUT / f"{file}.safetensors").chmod(0o644)


if __name__ == "__main__":
    main()
