"""The 128 bytes of a tensor map, as the driver encodes them."""

import ctypes

from .rules import FILLS, INTERLEAVES, L2_PROMOTIONS, SWIZZLES, TensorMapError

MAP_BYTES = 128  # size of one encoded tensor map
ENCODERS = {"tile": "cuTensorMapEncodeTiled", "im2col": "cuTensorMapEncodeIm2col"}


class DriverMissing(RuntimeError):
    """There is no CUDA driver (or no cuda-python) to encode a tensor map with."""


def encode(m) -> bytes:
    """The 128 bytes of a TensorMap, encoded for the device of the current context.

    Raises DriverMissing without a driver, and TensorMapError (rule "driver") if the driver refuses a
    map that passes every rule.
    """
    status, encoded = ask_driver(m)
    if status != "CUDA_SUCCESS":
        text = f"{ENCODERS[m.mode]} answered {status}, though every known rule holds; "
        text += "tensor maps need a GPU of compute capability 9.0 or higher. Arguments:"
        for name, value in driver_arguments(m).items():
            text += f"\n  {name} = " + (f"{value:#x}" if name == "globalAddress" else str(value))
        raise TensorMapError(text, "driver", status, "CUDA_SUCCESS")
    return encoded


def driver_arguments(m) -> dict:
    """Every argument of the driver's function for the map's mode by its name there, as plain Python values."""
    box = {"boxDim": list(m.box)} if m.mode == "tile" else {
        "pixelBoxLowerCorner": list(m.lower), "pixelBoxUpperCorner": list(m.upper),
        "channelsPerPixel": m.box[0], "pixelsPerColumn": m.box[1],
    }  # fmt: skip
    return {
        "tensorDataType": m.element.driver_name,
        "tensorRank": m.rank,
        "globalAddress": m.address,
        "globalDim": list(m.dims),
        # For rank 1 the driver reads no stride, but wants an array to point to.
        "globalStrides": list(m.strides) or [16],
        **box,
        "elementStrides": list(m.element_strides),
        "interleave": INTERLEAVES[m.interleave],
        "swizzle": SWIZZLES[m.swizzle],
        "l2Promotion": L2_PROMOTIONS[m.l2_promotion],
        "oobFill": FILLS[m.fill],
    }


def ask_driver(m) -> tuple[str, bytes]:
    """What the driver says (name of the CUresult) and the 128 bytes it wrote."""
    driver = start_driver()
    u64, u32 = driver.cuuint64_t, driver.cuuint32_t
    a = driver_arguments(m)
    if m.mode == "tile":
        box = ([u32(value) for value in a["boxDim"]],)
    else:
        box = a["pixelBoxLowerCorner"], a["pixelBoxUpperCorner"], a["channelsPerPixel"], a["pixelsPerColumn"]
    status, encoded = getattr(driver, ENCODERS[m.mode])(
        getattr(driver.CUtensorMapDataType, a["tensorDataType"]), a["tensorRank"], a["globalAddress"],
        [u64(value) for value in a["globalDim"]], [u64(value) for value in a["globalStrides"]],
        *box, [u32(value) for value in a["elementStrides"]],
        getattr(driver.CUtensorMapInterleave, a["interleave"]),
        getattr(driver.CUtensorMapSwizzle, a["swizzle"]),
        getattr(driver.CUtensorMapL2promotion, a["l2Promotion"]),
        getattr(driver.CUtensorMapFloatOOBfill, a["oobFill"])
    )
    if status != driver.CUresult.CUDA_SUCCESS:
        return status.name, b""
    return status.name, ctypes.string_at(int(encoded.getPtr()), MAP_BYTES)


def start_driver():
    """The driver module of cuda-python, initialised; DriverMissing if that is impossible."""
    advice = "encoding a tensor map needs an NVIDIA driver; the CPU engine does not encode"
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DriverMissing(f"cuda-python is not installed ({error}); {advice}") from error
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError as error:  # how cuda-python reports that libcuda was not found
        raise DriverMissing(f"no CUDA driver: {error} ({advice})") from error
    if status != driver.CUresult.CUDA_SUCCESS:
        raise DriverMissing(f"the CUDA driver does not start: cuInit says {status.name} ({advice})")
    return driver
