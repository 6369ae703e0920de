"""``from_cuda``: the kernels of a CUDA C++ file, by the compiler that is there."""

import re
import shutil
import subprocess
import tempfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from ..kernels import from_ptx
from ..parser import split

ARCHITECTURE = "sm_90a"
INSTALL = "pip install 'numba_deform[cuda]' brings nvcc"
# NVRTC has no headers of a C library; sources that want no more of them than this compile all the same.
INTEGERS = "".join(
    f"typedef {sign} {name} {letter}int{bits}_t;\n"
    for bits, name in ((8, "char"), (16, "short"), (32, "int"), (64, "long long"))
    for sign, letter in (("signed", ""), ("unsigned", "u"))
)
HEADERS = {"stdint.h": f"{INTEGERS}typedef unsigned long long uintptr_t;\n", "cstdint": "#include <stdint.h>\n"}
# Before a kernel's name may stand attributes, with numbers in brackets: __launch_bounds__(..).
KERNEL = re.compile(r"__global__[^;{}()]*(?:\b__\w+__\s*\((?:[^()]|\([^()]*\))*\)[^;{}()]*)*\b(\w+)\s*\(")


def from_cuda(file, options=(), compiler=None, language="cuda"):
    """The kernels of a CUDA C++ file as :func:`from_ptx` has them, compiled with line information for sm_90a,
    or what ``options`` say: ``["-arch=sm_100a"]``.

    ``compiler``: the path of an nvcc, or ``"nvrtc"``. Left out, it is the nvcc of the extra
    ``pip install 'numba_deform[cuda]'`` if it is installed, else the one in PATH or CUDA_HOME, else NVRTC,
    which comes with numba-cuda and compiles files without host code and headers of the C library. nvcc wants a
    C++ compiler of the host beside it. ``options`` are more words for either, such as
    ``["-std=c++20", "-Iinclude", "-DSTAGES=3"]``; the headers of CUDA's wheels need no ``-I``. ``language`` is
    that of cures, of ``languages.LANGUAGES``.

    Raises ValueError with the compiler's words, which name lines, where it does not compile the file;
    FileNotFoundError where there is no such file or no compiler, saying what to install."""
    kernels = from_ptx(compiled(file, options, compiler), language=language, made=f"PTX of {Path(file).name}")
    kernels.parameters |= parameters(Path(file).read_text())
    return kernels


def compiled(file, options=(), compiler=None):
    """The PTX, as ``from_cuda`` makes it."""
    file = Path(file)
    source, made = file.read_text(), compiler or nvcc() or "nvrtc"
    by = _by_nvrtc if str(made) == "nvrtc" else _by_nvcc
    return by(file, source, list(options), made)


def nvcc():
    """The path of an nvcc, the extra's first; None without one."""
    try:
        found = next((f.locate() for f in distribution("nvidia-cuda-nvcc").files or ()
                      if f.stem == "nvcc" and f.suffix in ("", ".exe")), None)  # fmt: skip
    except PackageNotFoundError:
        found = None
    if found and Path(found).exists():
        return str(found)
    if in_path := shutil.which("nvcc"):
        return in_path
    try:
        from cuda.pathfinder import find_nvidia_binary_utility
    except ImportError:  # as on macOS
        return None
    return find_nvidia_binary_utility("nvcc")


def parameters(source):
    """{kernel: names of its parameters} as the source declares them: PTX has but their numbers."""
    found = {}
    for kernel, declared in declarations(source).items():
        names = [re.search(r"(\w+)\s*(?:\[[^]]*\])?\s*(?:=.*)?$", one) for one in declared]
        if all(names):
            found[kernel] = tuple(name[1] for name in names)
    return found


def declarations(source):
    """{kernel: what the source declares of its parameters}, without arguments of templates."""
    plain = re.sub(r"//[^\n]*|/\*.*?\*/", " ", source, flags=re.S)
    found = {}
    for m in KERNEL.finditer(plain):
        depth, at = 1, m.end()
        while depth and at < len(plain):
            depth += {"(": 1, ")": -1}.get(plain[at], 0)
            at += 1
        found[m[1]] = split(_without_arguments(plain[m.end() : at - 1]))
    return found


def _without_arguments(text):
    """C++ without the arguments of its templates."""
    shorter = re.sub(r"<[^<>()]*>", "", text)
    return text if shorter == text else _without_arguments(shorter)


def _with_architecture(options):
    """The options, with what they are compiled for if none says so."""
    named = any(option.startswith(("-arch", "--gpu-architecture", "-gencode")) for option in options)
    return options if named else [f"-arch={ARCHITECTURE}", *options]


def virtual(options):
    """The options for a program whose PTX is wanted and no machine code."""
    text, code = "\0".join(_with_architecture(options)), r"-gencode=arch=compute_\1,code=compute_\1"
    return re.sub(r"(?:-arch|--gpu-architecture)[=\0]sm_(\w+)", code, text).split("\0")


def _by_nvcc(file, source, options, path):
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "kernels.ptx"
        run_nvcc(path, ["-ptx", "-lineinfo", *_with_architecture(options), str(file), "-o", str(out)], file)
        return out.read_text()


def run_nvcc(path, words, file):
    """Run an nvcc; ValueError with its words where it does not compile ``file``, FileNotFoundError where it is
    none."""
    try:
        ended = subprocess.run([str(path), *words], capture_output=True, text=True)
    except OSError as error:
        what = f"from_cuda: {path} does not start ({error.strerror}); {INSTALL}"
        raise FileNotFoundError(what) from None
    if ended.returncode:
        told = ended.stderr.strip() or ended.stdout.strip()
        raise ValueError(f"nvcc does not compile {file}:\n{told}{_of_another_gpu(told)}")


def _of_another_gpu(told):
    """What to do where a compiler says that its target lacks an instruction; else ""."""
    lacks = f"target '{ARCHITECTURE}'" in told
    return "\nFor a Blackwell GPU give options=-arch=sm_100a." if lacks else ""


def _by_nvrtc(file, source, options, _):
    try:
        from cuda.bindings import nvrtc
        from cuda.pathfinder import locate_nvidia_header_directory

        program = _answer(nvrtc.nvrtcCreateProgram(
            source.encode(), str(file.resolve()).encode(), len(HEADERS),
            [text.encode() for text in HEADERS.values()], [name.encode() for name in HEADERS]))  # fmt: skip
    except (ImportError, RuntimeError) as error:
        what = f"from_cuda needs nvcc or NVRTC, and there is neither ({error}); {INSTALL}"
        raise FileNotFoundError(what) from None
    folders = filter(None, map(locate_nvidia_header_directory, ("cudart", "cccl")))
    words = ["--generate-line-info", *_with_architecture(options),
             f"-I{file.resolve().parent}", *(f"-I{folder.abs_path}" for folder in folders)]  # fmt: skip
    (status,) = nvrtc.nvrtcCompileProgram(program, len(words), [word.encode() for word in words])
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        told = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        told = f"{told.strip() or status.name}{_of_another_gpu(told)}"
        raise ValueError(f"NVRTC does not compile {file}:\n{told}")
    return _text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)


def _answer(result):
    status, *values = result
    if status.value:
        raise RuntimeError(f"NVRTC says {status.name}")
    return values[0] if values else None


def _text(size, content, program):
    buffer = bytearray(_answer(size(program)))
    room = bytes(buffer)
    _answer(content(program, room))
    return room.rstrip(b"\0").decode(errors="replace")
