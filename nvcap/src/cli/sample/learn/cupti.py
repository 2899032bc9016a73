"""Samples an empty context with CUPTI, with one period after the other, for its calls of the driver, which nvcap records from outside.

    cupti.py BUS FIRST LAST     PCI address of the GPU; periods 2^FIRST to 2^LAST cycles

Functions and structures are those of cuda.h and cupti_pcsampling.h. A program of Python's, since nvcap may be a static one, which can load no library.
"""

import ctypes
import glob
import sys
from ctypes import c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p

# Places of CUPTI beside those where the loader looks: CUDA's, and the Python package nvidia-cuda-cupti.
CUPTI = ["libcupti.so.13", "libcupti.so.12", "libcupti.so"]
FOLDERS = ["/usr/local/cuda/lib64", "/usr/local/cuda/extras/CUPTI/lib64", "/usr/local/cuda/targets/*/lib", "/usr/lib/*-linux-gnu"]
PACKAGE = ["nvidia/cuda_cupti/lib", "nvidia/cu13/lib"]
REMEDY = (
    "install CUDA's CUPTI (cuda-cupti of NVIDIA's repository, or the Python package nvidia-cuda-cupti), "
    "or name its folder: sudo LD_LIBRARY_PATH=FOLDER nvcap sample --learn"
)
# Attributes, and their values.
PERIOD, REASONS, MODE, START_STOP, BUFFER, CONTINUOUS = 1, 2, 5, 6, 8, 1
# Program counters for which there is room: none comes.
COUNTERS = 16


class Parameters(ctypes.Structure):
    """A structure of CUPTI with `size`, `pPriv`, `ctx` and two words more, of which `size` says how many count."""

    _fields_ = [("size", c_size_t), ("private", c_void_p), ("context", c_void_p), ("more", c_size_t * 2)]


class Attribute(ctypes.Structure):
    """CUpti_PCSamplingConfigurationInfo."""

    _fields_ = [("kind", c_int), ("status", c_int), ("value", c_uint64 * 3)]


class CounterData(ctypes.Structure):
    """CUpti_PCSamplingPCData."""

    _fields_ = [("size", c_size_t), ("words", c_uint64 * 8)]


class Data(ctypes.Structure):
    """CUpti_PCSamplingData."""

    _fields_ = [("size", c_size_t), ("most_counters", c_size_t), ("samples", c_uint64), ("dropped", c_uint64), ("counters", c_size_t)]
    _fields_ += [("remaining", c_size_t), ("range", c_uint64), ("data", c_void_p), ("others", c_uint64), ("full", c_uint64)]


def load(names, remedy):
    for name in names:
        try:
            return ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
        except OSError:
            pass
    sys.exit(f"there is no {names[0]}: {remedy}")


def context_of(cuda, bus):
    """A context of the GPU at this PCI address."""
    device, context = c_int(), c_void_p()
    for name, arguments in [
        ("cuInit", [c_uint32(0)]),
        ("cuDeviceGetByPCIBusId", [ctypes.byref(device), c_char_p(bus.encode())]),
        ("cuCtxCreate_v2", [ctypes.byref(context), c_uint32(0), device]),
    ]:
        result = getattr(cuda, name)(*arguments)
        if result != 0:
            sys.exit(f"{name} fails with CUDA's error {result}")
    return context


def sample(cupti, context, period):
    """One sampling, begun and ended."""

    def call(name, *more):
        parameters = Parameters(8 * (3 + len(more)), None, context, (c_size_t * 2)(*more))
        result = getattr(cupti, name)(ctypes.byref(parameters))
        if result != 0:
            text = c_char_p()
            cupti.cuptiGetResultString(result, ctypes.byref(text))
            sys.exit(f"{name} fails: {(text.value or b'').decode()} ({result})")

    call("cuptiPCSamplingEnable")
    count = c_size_t()
    call("cuptiPCSamplingGetNumStallReasons", ctypes.addressof(count))
    # The reasons are numbered from 0.
    reasons = (c_uint32 * count.value)(*range(count.value))
    counters = (CounterData * COUNTERS)(*[CounterData(ctypes.sizeof(CounterData))] * COUNTERS)
    data = Data(size=ctypes.sizeof(Data), most_counters=COUNTERS, data=ctypes.addressof(counters))
    values = [
        (MODE, [CONTINUOUS]),
        (REASONS, [count.value, ctypes.addressof(reasons)]),
        (BUFFER, [ctypes.addressof(data)]),
        (PERIOD, [period]),
        (START_STOP, [1]),
    ]
    attributes = (Attribute * len(values))(*[Attribute(kind, 0, (c_uint64 * 3)(*value)) for kind, value in values])
    call("cuptiPCSamplingSetConfigurationAttribute", len(values), ctypes.addressof(attributes))
    call("cuptiPCSamplingStart")
    call("cuptiPCSamplingStop")
    call("cuptiPCSamplingDisable")


def main():
    bus, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    context = context_of(load(["libcuda.so.1"], "install NVIDIA's driver"), bus)
    places = [f"{folder}/libcupti.so*" for folder in FOLDERS] + [f"{path}/{folder}/libcupti.so*" for path in sys.path for folder in PACKAGE]
    cupti = load(CUPTI + [found for place in places for found in sorted(glob.glob(place), reverse=True)], REMEDY)
    for period in range(first, last + 1):
        sample(cupti, context, period)
    print("sampled")


if __name__ == "__main__":
    main()
