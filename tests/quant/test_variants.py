"""Every variant of the compiled kernels that this CPU runs gives the reference's bits; how one is chosen."""

import ctypes

import pytest
import torch

import kernel_cases
from fedqssl import library
from fedqssl.quant import pack
from fedqssl.quant.kernels import describe, native

pytestmark = pytest.mark.skipif(not native.available(), reason=native.REASON)


@pytest.fixture(scope="module")
def cases():
    return kernel_cases.small()


@pytest.mark.parametrize("variant", native.variants())
def test_every_kernel_gives_the_bits_of_the_reference(variant, cases):
    found, reason = library.load(variant)
    assert found is not None and reason == variant
    names = set()
    for number, case in enumerate(cases):
        names.add(case.name)
        assert kernel_cases.call(found.functions, case) == kernel_cases.expected(case), (
            number,
            case.name,
            case.integers,
        )
    assert names | {"conv_bytes", "conv_prepare"} == set(found.functions)


def test_the_portable_variant_is_always_there_and_last():
    assert native.variants()[-1] == "portable" and native.variants()[0] == native.REASON


def test_a_variant_for_a_process(monkeypatch):
    monkeypatch.setenv("FEDQSSL_VARIANT", " Portable ")
    assert library.load()[1] == "portable"
    monkeypatch.setenv("FEDQSSL_VARIANT", "sse9")
    assert library.load() == (None, f"this CPU runs {', '.join(native.variants())}, not sse9")


def test_another_variant_for_a_block_of_code():
    before, codes = native.REASON, torch.arange(11) % 8
    want = pack(codes, 3)
    with native.use_variant("portable"):
        assert describe()["native_detail"] == native.REASON == "portable"
        assert torch.equal(pack(codes, 3), want)
    assert before == native.REASON
    with pytest.raises(ValueError, match="not sse9"), native.use_variant("sse9"):
        pass


class _Fake:
    """A library as it might be found."""

    class _Text:
        def __init__(self, text: bytes) -> None:
            self.text = text

        def __call__(self) -> bytes:
            return self.text

    def __init__(self, abi: int, variants: bytes) -> None:
        self.fq_abi_version, self.fq_variants = (lambda: abi), self._Text(variants)


@pytest.mark.parametrize(
    ("abi", "variants", "reason"),
    [
        (library._ABI - 1, b"avx2", "built from another version; reinstall fedqssl"),
        (library._ABI, b"", "this CPU is big-endian, or computes with more digits than float32 has"),
        (library._ABI, b"avx9", "built from another version; reinstall fedqssl"),  # which lacks the functions
    ],
)
def test_libraries_that_do_not_fit_are_refused(abi, variants, reason, monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda path: _Fake(abi, variants))
    assert library.load() == (None, reason)


def test_a_missing_openmp_is_named(monkeypatch, tmp_path):
    def missing(path):
        raise OSError("libgomp.so.1: cannot open shared object file")

    assert library.load(path=tmp_path / "none.so")[1].startswith("does not load: ")
    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert library.load()[1].endswith("; install libgomp1")
