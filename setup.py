"""Builds the CPU kernels and names the wheel; everything else is in pyproject.toml.

The kernels are a plain C-ABI library loaded with ctypes: they need a C++ compiler with OpenMP and nothing of Python or
torch, so one wheel (py3-none-PLATFORM) serves every version of Python. One library holds every variant that the CPU's family
may run (AVX2 or portable on x86-64, NEON with or without dot products on ARM, portable elsewhere) and says which one fits.

A wheel without kernels would be slow without saying so: if they do not compile, building a wheel fails, unless
FEDQSSL_BUILD_KERNELS=0 asks for a wheel without them. An editable install falls back to the plain-torch kernels with
a warning (`fedqssl doctor` says which kernels are in use).
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

SOURCES = "src/fedqssl/quant/kernels"


class BuildKernels(build_ext):
    """Compiles the library under a name without Python's ABI tag; only editable installs may fail to."""

    def build_extension(self, ext):
        try:
            super().build_extension(ext)
        except Exception as error:
            if not (self.inplace or self.editable_mode):
                raise SystemExit(
                    f"fedqssl: the CPU kernels did not compile ({error}). Install a C++ compiler with OpenMP (g++), "
                    "or set FEDQSSL_BUILD_KERNELS=0 to build without them (training is slower, results are the same)."
                ) from error
            ext.optional = True  # so that setuptools does not look for the missing file
            print(f"warning: fedqssl: CPU kernels not built ({error}); the plain-torch kernels will be used")

    def get_ext_filename(self, fullname):
        return os.path.join(*fullname.split(".")) + ".so"

    def get_export_symbols(self, ext):
        return []


class PlatformWheel(bdist_wheel):
    """Tags a wheel with kernels py3-none-PLATFORM, because they call nothing of Python."""

    def get_tag(self):
        python, abi, platform = super().get_tag()
        return (python, abi, platform) if self.root_is_pure else ("py3", "none", platform)


def kernels():
    """The kernels' library, or nothing if the caller asked for a build without it."""
    if "FEDQSSL_NO_KERNELS" in os.environ:
        raise SystemExit("fedqssl: FEDQSSL_NO_KERNELS is gone; set FEDQSSL_BUILD_KERNELS=0 instead")
    if os.environ.get("FEDQSSL_BUILD_KERNELS", "1") == "0":
        return []
    # Apple's compiler has no OpenMP: the kernels are built without, and run in one thread.
    openmp = [] if sys.platform == "darwin" else ["-fopenmp"]
    library = Extension(
        "fedqssl.quant.kernels._native",
        sources=[f"{SOURCES}/native.cpp"],
        depends=sorted(map(str, Path(SOURCES).glob("native_*.h"))),
        extra_compile_args=["-O3", "-std=c++17", *openmp, "-ffp-contract=off", "-fvisibility=hidden"],
        extra_link_args=openmp,
        language="c++",
    )
    return [library]


setup(ext_modules=kernels(), cmdclass={"build_ext": BuildKernels, "bdist_wheel": PlatformWheel})
