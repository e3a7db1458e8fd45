"""Every Triton kernel, compiled ahead of time for GPUs that are not there: PTX without fused multiply-add."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed (extra gpu)"),
]

CODE = """
import inspect, json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from fedqssl.quant.kernels import triton_codes, triton_norm

BYTES = {"packed", "mask", "hat", "codes", "gradient"}
FLOATS = {"x", "y", "g", "mul", "add", "hat_mul", "hat_add", "residual", "values", "centres"}
DOUBLES = {"sums", "products", "squares", "uniform"}
NUMBERS = {"mul", "add", "hat_step", "hat_low", "residual_step", "scale", "step", "hat_scale"}
OWN = {
    "pack_kernel": {"codes": "*i16", "out": "*u8"},
    "unpack_kernel": {"out": "*i16"},
    "unpack_affine_kernel": {"out": "*fp32", "mul": "fp32", "add": "fp32"},
    "unpack_table_kernel": {"table": "*fp64", "out": "*fp64"},
    "quantize_pack_kernel": {"out": "*u8", "mul": "fp32"},
    "histogram_kernel": {"counts": "*i32"},
    "look_up_kernel": {"table": "*i64", "out": "*i16"},
    "step_target_kernel": {"table": "*fp64", "out": "*fp64", "rate": "i64"},
    "round_pack_kernel": {"y": "*fp64", "out": "*u8", "scale": "i64", "snap": "i64"},
    "backward_sums_kernel": {"out": "*fp32"},
    "backward_apply_kernel": {"out": "*fp32"},
    "norm_act_kernel": {"residual": "*u8"},
}
CONSTANTS = {
    "BITS": 12, "MOVES": 14, "GROUPS": 128, "BLOCK": 1024, "EXTRA": 4, "STOCHASTIC": True, "MASKED": True, "HAT_BITS": 7,
    "KEEP": True, "PER_PROGRAM": 512, "ROWS": 16, "COLUMNS": 64, "RESIDUAL": 1, "VALUES": True, "CODES": True, "SAVE": True,
}

def kind(kernel, name):
    own = OWN.get(kernel, {})
    if name in own: return own[name]
    if name in CONSTANTS: return "constexpr"
    if name in BYTES: return "*u8"
    if name in FLOATS: return "*fp32"
    if name in DOUBLES: return "*fp64"
    return "fp32" if name in NUMBERS else "i64"

found = {}
for module in (triton_codes, triton_norm):
    for name, kernel in vars(module).items():
        if not name.endswith("_kernel"): continue
        signature = {n: kind(name, n) for n in kernel.arg_names}
        constants = {n: CONSTANTS[n] for n in kernel.arg_names if n in CONSTANTS}
        for capability in (80, 90):
            source = ASTSource(kernel, signature, constants)
            made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"enable_fp_fusion": False})
            ptx = made.asm["ptx"]
            found[f"{name} sm_{capability}"] = [len(ptx), f".target sm_{capability}" in ptx, "fma.rn.f" in ptx, "div.full" in ptx]
print(json.dumps(found))
"""


def test_all_kernels_compile_for_both_generations():
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 2 * 13
    for name, (size, for_target, fused, approximate) in found.items():
        assert size > 1000 and for_target, name
        assert not fused and not approximate, f"{name}: another rounding than the CPU's"
