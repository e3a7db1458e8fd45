"""Builds the CPU kernels and names the wheel; everything else is in pyproject.toml.

The kernels are a plain C-ABI library loaded with ctypes: they need a C++ compiler with OpenMP and nothing of Python or
torch, so one wheel (py3-none-PLATFORM) serves every version of Python.

A wheel without kernels would be slow without saying so: if they do not compile, building a wheel fails, unless
FEDQSSL_BUILD_KERNELS=0 asks for a wheel without them. An editable install falls back to the plain-torch kernels with
a warning (`fedqssl doctor` says which kernels are in use).
"""

import os

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
    library = Extension(
        "fedqssl.quant.kernels._native",
        sources=[f"{SOURCES}/native.cpp"],
        depends=[f"{SOURCES}/native_{part}.h" for part in ("quantile", "norm", "bits", "step")],
        extra_compile_args=["-O3", "-std=c++17", "-fopenmp", "-ffp-contract=off", "-fvisibility=hidden"],
        extra_link_args=["-fopenmp"],
        language="c++",
    )
    return [library]


setup(ext_modules=kernels(), cmdclass={"build_ext": BuildKernels, "bdist_wheel": PlatformWheel})
