"""Every Triton kernel, compiled ahead of time for GPUs that are not there: PTX without fused multiply-add.

Twice: with wide codes and every branch taken, and with narrow ones, the other types, and all sizes 1.
"""

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
DOUBLES = {"uniform"}
NUMBERS = {"mul", "add", "hat_step", "hat_low", "residual_step", "scale", "step", "hat_scale"}
OWN = {
    "pack_kernel": {"codes": "*i16", "out": "*u8"},
    "unpack_kernel": {"out": "*i16"},
    "unpack_affine_kernel": {"out": "*fp32", "mul": "fp32", "add": "fp32"},
    "unpack_table_kernel": {"table": "*fp64", "out": "*fp64"},
    "quantize_pack_kernel": {"out": "*u8", "mul": "fp32"},
    "histogram_kernel": {"counts": "*i32"},
    "look_up_kernel": {"table": "*i32", "out": "*i16"},
    "table_kernel": {"low": "*fp32", "high": "*fp32", "codes": "*i32"},
    "step_target_kernel": {"table": "*fp64", "out": "*fp64", "rate": "i64"},
    "round_pack_kernel": {"y": "*fp64", "out": "*u8", "scale": "i64", "snap": "i64"},
    "block_sums_kernel": {"out": "*fp32", "sums": "*fp32", "products": "*fp32", "step": "i64"},
    "add_in_order_kernel": {"parts": "*fp32", "out": "*fp64"},
    "backward_apply_kernel": {"out": "*fp32"},
    "norm_act_kernel": {"residual": "*u8"},
}
CONSTANTS = {
    "BITS": 12, "MOVES": 14, "GROUPS": 128, "BLOCK": 1024, "EXTRA": 4, "STOCHASTIC": True, "MASKED": True, "HAT_BITS": 7,
    "KEEP": True, "STATS": False, "BLOCKS": 16, "COLUMNS": 64, "RESIDUAL": 1, "VALUES": True, "CODES": True, "SAVE": True,
}

# The other types and branches. Triton makes a constant of every integer that is 1, except where it is told not to.
OTHER_TYPES = {
    "pack_kernel": {"codes": "*u8"}, "unpack_kernel": {"out": "*u8"}, "unpack_table_kernel": {"table": "*fp32", "out": "*fp32"},
    "look_up_kernel": {"table": "*fp32", "out": "*fp32"}, "add_in_order_kernel": {"parts": "*fp64"},
    "norm_act_kernel": {"residual": "*fp32"},
}
OTHER_CONSTANTS = {
    "BITS": 3, "MOVES": 5, "EXTRA": 0, "STOCHASTIC": False, "MASKED": False, "HAT_BITS": 0, "KEEP": False, "STATS": True,
    "RESIDUAL": 2, "VALUES": False, "CODES": False, "SAVE": False,
}

def kind(kernel, name, other):
    own = OWN.get(kernel, {}) | (OTHER_TYPES.get(kernel, {}) if other else {})
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
        for capability, other in ((80, False), (90, False), (80, True)):
            signature = {n: kind(name, n, other) for n in kernel.arg_names}
            constants = {n: CONSTANTS[n] for n in kernel.arg_names if n in CONSTANTS}
            if other:
                ones = [n for n, k in signature.items() if k == "i64" and n not in OWN.get(name, {})]
                signature |= dict.fromkeys(ones, "constexpr")
                constants |= {n: x for n, x in OTHER_CONSTANTS.items() if n in constants} | dict.fromkeys(ones, 1)
            source = ASTSource(kernel, signature, constants)
            made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"enable_fp_fusion": False})
            ptx = made.asm["ptx"]
            for_target = f".target sm_{capability}" in ptx
            found[f"{name} sm_{capability} {other}"] = [len(ptx), for_target, "fma.rn.f" in ptx, "div.full" in ptx]
print(json.dumps(found))
"""


def test_all_kernels_compile_for_both_generations():
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 3 * 14
    for name, (size, for_target, fused, approximate) in found.items():
        assert size > 1000 and for_target, name
        assert not fused and not approximate, f"{name}: another rounding than the CPU's"
