"""The command line: ``numba-deform COMMAND key=value ...``, with the keys of the original programs.

Every command is a function from its words to an exit status: 0 right, 1 a wrong result, 2 bad input.
What is computed lives in ``measure/``; here are parsing and printing. A module of this package enters its
commands by ``keys.command``."""

import os
import re
import subprocess
import sys

from ..compiler.sass import ToolMissing
from ..engines.cpu import SimFault
from ..engines.gpu.device import GpuMissing, is_cuda_error
from ..engines.tensormap import DriverMissing
from ..measure.parameters import REAL, TEXT
from ..measure.worker import run_program
from . import bench, budget, bugs, keys, lessons, run, tools  # noqa: F401  (they enter their commands)
from .keys import BAD_INPUT, COMMANDS, INTERRUPTED, KEYS, RIGHT, Key, UsageError, closest, verdict

TIME_LIMIT = Key("time_limit", REAL, "seconds")

USAGE = """\
Multi-scale deformable attention in Numba CUDA, with TMA and mbarrier; no GPU? On the CPU engine.

numba-deform COMMAND key=value ...
numba-deform time_limit=SECONDS COMMAND key=value ...     in a child process, which is killed if it takes longer

              GPU
  run         either  compute the operator with one variant and compare it with the float64 reference
  probe       either  send one 2x2x32 box through TMA: the first thing to try
  tile-copy   either  copy a tensor tile by tile with TMA, check every bit, measure
  data        no      data write dir=PATH writes a data directory; data read dir=PATH checks one
  variants    no      list the kernels with their parameters
  budget      no      shared memory, registers and resident blocks of a configuration, or of a grid
  timeline    either  what each warp of a block does when, drawn for either engine or for both
  bugs        no      planted faults: bugs lists them, bugs NAME tells the story and shows the report
  lessons     no      lessons DIR copies the lessons as notebooks, to work in
  progress    no      progress DIR: which exercises of those copies are solved
  inspect     no      PTX, machine code, registers and spills of a variant
  bench       yes     time variants, peers and ceilings in one run, and say what bounds each
  sweep       yes     check and time a grid such as variant=tma stages=1,2,3 lanes=4,8, resumable
  tune        yes     measure a few kernels on this GPU, and keep the fastest for variant=auto
  table       no      the table of a result file of bench or sweep, for the terminal or as Markdown
  plot        no      the plot of a result file, or time against x=sigma, queries, stages, ...
  help        no      this text;  help COMMAND: its keys;  --version: the version

GPU: either takes the GPU if there is one, else the CPU engine. bugs NAME engine=gpu needs one. For bench and
sweep, engine=cpu workload=tiny gives the CPU engine's virtual cycles instead of times.

Examples:
  numba-deform probe
  numba-deform run
  numba-deform run variant=tma stages=4 workload=tiny schedules=5 landing=random engine=cpu
  numba-deform run batch=1 spatial_size=100 num_query=100 num_heads=1 channels=32 num_levels=4 \\
      num_points=8 im2col_step=1
  numba-deform run workload=picture picture_out=out.png
  numba-deform data write dir=/tmp/quick workload=quick
  numba-deform run dir=/tmp/quick variant=direct lanes=4
  numba-deform budget variant=tma stages=1,2,3,4 threads=256,512 lanes=4 points_per_stage=1
  numba-deform timeline variant=warp-specialized stages=3 engine=cpu out=timeline.png
  numba-deform bugs parity_inverted
  numba-deform inspect variant=tma stages=3 show=sass
  numba-deform bench variants=direct,tma:stages=3,lanes=4,persistent patterns=seed,'local(2)' peers=1
  numba-deform bench workload=seeds,detr-encoder dtype=float16,float32 profile=1 out=bench.json
  numba-deform sweep variant=direct,tma-fastest patterns='local(0.5),local(2),local(8)' out=spread.json
  numba-deform tune workload=detr-encoder-b4 patterns='local(2)',uniform
  numba-deform plot file=spread.json x=sigma out=spread.png
"""
GPU = {"no": "needs no GPU", "yes": "needs a GPU",
       "either": "takes the GPU if there is one, else the CPU engine"}  # fmt: skip


def help(words):
    """``numba-deform help`` and ``help COMMAND``."""
    if not words:
        print(USAGE, end="")
        return RIGHT
    command = _command(words[0])
    if command == "help":
        return help([])
    print(f"numba-deform {command} key=value ...")
    gpu, about = re.search(rf"^  {command} +(\w+) +(.+)$", USAGE, re.M).groups()
    print(f"{about}; {GPU[gpu]}\n")
    rows = [(k.name, k.help + f" ({k.kind.accepts})" * (k.kind is not TEXT)) for k in KEYS[command]]
    if keys.VARIANT in KEYS[command]:
        rows.append(("...", "and the variant's own parameters: see numba-deform variants"))
    for name, text in rows:
        print(f"  {name:<15} {text}")
    return RIGHT


COMMANDS["help"] = help


def _command(word):
    if word in COMMANDS:
        return word
    if "=" in word:
        raise UsageError(f"there is no command before {word}; try: numba-deform run {word} ...")
    known = ", ".join(COMMANDS)
    raise UsageError(f"unknown command {word}{closest(word, COMMANDS)} (there are {known})")


def main(argv=None):
    """Run one command; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        words = ["help"]
    if words == ["--version"]:
        package, _, _ = __package__.partition(".")  # loaded before this, which is a part of it
        print(f"numba-deform {sys.modules[package].__version__}")
        return RIGHT
    try:
        if words[0].startswith("time_limit="):
            return _limited(words)
        status = COMMANDS[_command(words[0])](words[1:])
        sys.stdout.flush()
        return status
    except SimFault as fault:
        return _report_fault(fault)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return RIGHT
    except KeyboardInterrupt:
        print("numba-deform: interrupted", file=sys.stderr)
        return INTERRUPTED
    except GpuMissing as error:
        return _refuse(f"{str(error).rstrip('.')}; engine=cpu needs no GPU")
    except MemoryError as error:
        return _refuse(f"this does not fit in memory: {error}")
    except (ValueError, DriverMissing, ToolMissing, ImportError, OSError) as error:
        return _refuse(error)
    except Exception as error:
        if not (isinstance(error, RuntimeError) or is_cuda_error(error)):
            raise
        print(f"numba-deform: the GPU or its tools failed: {error}", file=sys.stderr)
        return verdict(False)


def _limited(words):
    """Run the rest of the words in a process group of its own, and end all of it after the time."""
    (seconds,) = keys.parse_pairs(keys.split_pairs(words[:1]), [TIME_LIMIT], "numba-deform").values()
    if seconds <= 0 or len(words) == 1:
        raise UsageError(f"{words[0]}: more than 0 seconds, and then a command")
    _command(words[1])
    try:
        return run_program([sys.executable, "-m", "numba_deform", *words[1:]], seconds).returncode
    except subprocess.TimeoutExpired:
        print(f"numba-deform: still running after {seconds:g} s: stopped", file=sys.stderr)
        return verdict(False)


def _refuse(error):
    print(f"numba-deform: {error}", file=sys.stderr)
    return BAD_INPUT


def _report_fault(fault):
    """The CPU engine has found a broken rule: all of its text, and how to see it again."""
    print(fault, file=sys.stderr)
    seed, landing = getattr(fault, "seed", None), getattr(fault, "landing", None)
    if seed is not None:
        print(f"  replay schedule_seed={seed} landing={landing}", file=sys.stderr)
    return verdict(False)
