"""The table of commands: what each is for, its keys, and where its function stands, which is imported for the
call. ``help`` is made from it, and completion."""

import sys
from dataclasses import dataclass
from importlib import import_module

from ..engines.gc_pauses import no_collections
from ..engines.suggestions import closest
from . import keys
from .keys import COUNT, FLAG, TEXT, WHOLE, Key, UsageError, one_of, parse_pairs, split_pairs

RIGHT, WRONG, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
GPU = {"no": "needs no GPU", "yes": "needs a GPU",
       "either": "takes the GPU if there is one, else the CPU engine"}  # fmt: skip
COMMANDS = {}
KERNEL = """
FILE.cu with a main() is a whole program: behind it come options= and compiler=, then the program's own words,
from the first that is none of these keys, or behind --. FILE.ptx, and FILE.cu without a main() or with entry=,
grid= and so on behind it, is one launch of a kernel:
  entry           the kernel: ring, scale<float>, or mangled; may be left out where there is one
  grid, block     blocks and threads, such as 2,1 and 64; default 1, and what the kernel is compiled for
  shared          bytes of dynamic shared memory (extern __shared__), default 0
  cluster         blocks of a cluster
  args            a Python file that defines args, the list of arguments, and may expected, check(args), memory
  aligned         declared: dynamic shared memory is aligned as the text says (gpu: as a GPU places it)
  options         for the compiler, '-std=c++17 -DN=3' or -arch=sm_100a; of several all are taken
  compiler        the path of an nvcc, or nvrtc"""


@dataclass(frozen=True)
class Command:
    """One command: called with its words it returns the exit status.

    call   ``module:function`` here; the function gets ``{key: value}``, or ``{key: text}`` if ``raw``
    gpu    whether it needs one, a key of GPU
    first  the key whose value may stand without it
    pipeline  as ``call``, for a pipeline that load= has brought; it gets ``{key: text}``
    program   whether a program with its own words comes behind the keys: ``options["program"]``"""

    name: str
    call: str
    gpu: str
    about: str
    keys: tuple[Key, ...]
    first: str
    raw: bool
    pipeline: str = ""
    program: bool = False

    def __call__(self, words):
        own = self.own_words(words)
        pairs = split_pairs(words[:own], self.keys, self.first)
        files = pairs.pop("load").split(",") if keys.LOAD in self.keys and "load" in pairs else ()
        options = pairs if self.raw else parse_pairs(pairs, self.keys, self.name)
        names = [n for file in files for n in import_module("..kernels.registry", __package__).load(file)]
        if names:
            self._mean(options, names)
        if self.program:
            options["program"] = words[own:]
        call = self.pipeline if self._is_pipeline(names, options.get("variant", "")) else self.call
        module, _, function = call.partition(":")
        with no_collections():
            module = import_module(f".{module}", __package__)
        return getattr(module, function)(options)

    def own_words(self, words):
        """How many of the words are keys with their values: behind them comes the program."""
        known, place = {key.name: key for key in self.keys}, 0
        while self.program and place < len(words):
            name, equals, _ = words[place].removeprefix("--").partition("=")
            key = known.get(name.replace("-", "_"))
            if not (words[place].startswith("--") or words[place] == "-h" or equals and name.isidentifier()):
                return place
            place += 1 if equals or key is None or key.by_itself else 2
        return len(words)

    def _mean(self, options, names):
        """What is loaded is what is meant, where nothing is named."""
        if self.name == "bench":
            own = [] if self._is_pipeline(names, *names) else ["direct"]
            options.setdefault("variants", ",".join([*own, *names]))
        elif self.name == "sweep":
            options.setdefault("variant", ",".join(names))
        elif self.name == "tune" and not self._is_pipeline(names, *names):
            options.setdefault("variants", ",".join(["direct", "window", *names]))
        elif self.name != "variants" and "variant" not in options:
            if len(names) > 1:
                raise UsageError(f"load= brings {', '.join(names)}: variant= says which")
            options["variant"] = names[0]

    def _is_pipeline(self, loaded, *names):
        """Whether all ``names`` are pipelines; only what was loaded can be one."""
        if not loaded or not (self.pipeline or self.name == "bench"):
            return False
        pipelines = import_module("..kernels.pipelines", __package__).PIPELINES
        return all(name in pipelines for name in names)


def command(name, call, gpu, about, *keys, first="", raw=False, pipeline="", program=False):
    """Enter a :class:`Command`."""
    COMMANDS[name] = Command(name, call, gpu, about, keys, first, raw, pipeline, program)


PREDICTING = Key("engine", one_of(*keys.ENGINES, "model"), "cpu: virtual cycles; model: predicted, no GPU")
command(
    "run", "run:run", "either",
    "compute the operator with one variant and compare it with the float64 reference",
    *keys.SHAPE, *keys.DRAW, keys.DIRECTORY, keys.ENGINE_KEY, keys.VARIANT, keys.LOAD, keys.LINKED,
    *keys.SIMULATION, keys.WAIVE,
    Key("picture_out", TEXT, "for workload=picture: write the output as a PNG"),
    Key("debug_rows", keys.ROWS, "with debug=1: whose tiles to compare, (b * Q + q) * H + h, default 0"),
    Key("force", FLAG, "run on the CPU engine however long it takes"), raw=True, pipeline="pipelines:run",
)  # fmt: skip
command(
    "probe", "tools:probe", "either", "send one 2x2x32 box through TMA: the first thing to try",
    keys.ENGINE_KEY, Key("corner", keys.CORNER, "where the box starts"),
)  # fmt: skip
command(
    "tile-copy", "tools:tile_copy", "either",
    "copy a tensor tile by tile with TMA, check every bit, measure", keys.ENGINE_KEY,
    Key("shape", keys.SIZES, "the tensor, default 100x100x32"),
    Key("box", keys.SIZES, "the tile, default 2x2x32"),
    Key("dtype", keys.DTYPE, "default float16"), Key("warps", COUNT, "warps of a block, default 4"),
    Key("stages", COUNT, "tiles in flight for each warp, default 4"),
    Key("repeats", COUNT, "timed runs on a GPU, default 10"),
)  # fmt: skip
command(
    "data", "tools:data", "no",
    "data write dir=PATH writes a data directory; data read dir=PATH checks one",
    Key("action", TEXT, "read or write, which may stand alone", ("read", "write")),
    *keys.SHAPE, *keys.DRAW, keys.DIRECTORY,
    Key("force", FLAG, "overwrite files that are there"), first="action",
)  # fmt: skip
command(
    "check", "check:check", "no",
    "run a program of Numba, Triton, CuPy, PyTorch or CUDA C++, or one kernel, and say what is wrong with it",
    *keys.SIMULATION, keys.WAIVE,
    Key("explore", FLAG, "try every order of a launch's events first"),
    Key("stop", FLAG, "end the program at the first fault"),
    Key("all", FLAG, "judge every block: else large launches are sampled, and the rest runs without checks"),
    Key("strict", FLAG, "judge what Triton's compiler emits and its users cannot mend, too"),
    Key("arch", TEXT, "the GPU that the program finds and Triton compiles for: sm_100a; default sm_90a"),
    Key("suppress", TEXT, "a file of lines RULE FILE:LINE, both patterns: faults that do not count"),
    Key("json", TEXT, "the JSON file to write"), Key("junit", TEXT, "the XML file to write, as JUnit's"),
    Key("sarif", TEXT, "the SARIF file to write, which GitHub shows on the lines of a change"),
    program=True,
)  # fmt: skip
command("variants", "tools:variants", "no", "list the kernels with their parameters", keys.LOAD)
command(
    "budget", "budget:budget", "no",
    "shared memory, registers and resident blocks of a configuration, or of a grid",
    keys.VARIANT, keys.LOAD, *keys.COMPILED_FOR,
    Key("registers", keys.REGISTERS, "of a thread, instead of compiling to find out; 0 leaves them out"),
    Key("markdown", FLAG, "print the table as Markdown"), raw=True, pipeline="pipelines:budget",
)  # fmt: skip
command(
    "timeline", "run:timeline", "either",
    "what each warp of a block does when, drawn for either engine, for both, or for a model of an SM",
    *keys.SHAPE, *keys.DRAW, keys.VARIANT, keys.LOAD, *keys.SIMULATION[1:],
    Key("engine", keys.DRAWN_BY, "both: CPU engine and GPU, one above the other; model: predicted, of an SM"),
    Key("block", keys.BLOCKS, "which blocks, one above the other: 0 or 0,3; default 0"),
    Key("out", TEXT, "the file to write: .png, .svg, or .json for Perfetto"),
    Key("start", WHOLE, "first cycle of the picture, default 0"),
    Key("end", WHOLE, "last cycle of the picture, default the block's last"), raw=True,
    pipeline="pipelines:timeline",
)  # fmt: skip
command(
    "bugs", "bugs:bugs", "no",
    "planted faults: bugs lists them, bugs NAME tells the story and shows the report",
    Key("name", TEXT, "which one; it may stand alone", keys.BUGS),
    Key("engine", one_of("cpu", "gpu"), "default cpu; gpu launches it in a child process"),
    Key("fixed", FLAG, "run the right twin instead"),
    Key("debug", FLAG, "engine=gpu: bound every wait, so that a hang ends in a report"),
    Key("schedules", keys.SCHEDULES, "CPU engine: try that many orders of the threads, or all"),
    Key("limit", COUNT, f"CPU engine: with schedules=all, at most that many, default {keys.EXPLORE_LIMIT}"),
    *keys.SIMULATION[1:], first="name",
)  # fmt: skip
command(
    "new", "new:new", "no", "new my.py writes a pipeline to start from, for run, timeline, bench .. load=my.py",
    Key("file", TEXT, "the file to write; it may stand alone"),
    Key("template", TEXT, "copy (default), reduction, product, gemm, attention, stencil .."), first="file",
)
command(
    "lessons", "lessons:lessons", "no", "lessons DIR copies the lessons as notebooks, to work in",
    Key("dir", TEXT, "the directory; it may stand alone"), Key("solutions", FLAG, "0 leaves them out"),
    Key("nbgrader", FLAG, "for nbgrader: answers and locked tests, in source/LESSON"),
    Key("language", one_of("zh"), "those that are there in Chinese, with the same code"), first="dir",
)  # fmt: skip
command(
    "progress", "lessons:progress", "no", "progress DIR: which exercises of those copies are solved",
    Key("dir", TEXT, "the directory; it may stand alone"), Key("json", FLAG, "as JSON"),
    Key("again", FLAG, "run each lesson anew with the answers, and believe no saved output"), first="dir",
)  # fmt: skip
command(
    "inspect", "tools:inspect", "no",
    "PTX, machine code, registers and spills of a variant",
    keys.VARIANT, keys.LOAD, *keys.COMPILED_FOR, keys.LINKED,
    Key("show", one_of("summary", "ptx", "sass"), "what to print"), raw=True, pipeline="pipelines:inspect",
)  # fmt: skip
command(
    "profile", "profile:variant", "no",
    "instructions, wavefronts, sectors and bytes of each line, counted as its machine code runs here: of a "
    "variant, a pipeline, a whole program, or a kernel of PTX or CUDA C++ in the words of check",
    *keys.SHAPE, *keys.DRAW, keys.DIRECTORY, keys.VARIANT, keys.LOAD, *keys.PROFILE, raw=True,
    pipeline="profile:pipeline", program=True,
)  # fmt: skip
command(
    "bench", "bench:run_bench", "yes",
    "time variants, peers and ceilings in one run, and say what bounds each",
    Key("what", one_of("forward", "gradients", "training"),
        "gradients: forward, backward and both in PyTorch; training: a step of Deformable DETR's encoder"),
    Key("variants", TEXT, "direct,tma:stages=3,lanes=4,... or all; linked=1 is a parameter too; of gradients, "
        "backward:sums=fixed,backward-window", (*keys.VARIANTS, "auto", "all", "backward", "backward-window")),
    keys.LOAD, keys.PRESET_LIST,
    Key("patterns", TEXT, "seed,uniform,local(2),...; default: the workload's own", keys.PATTERNS),
    keys.DTYPE_LIST, keys.REPEATS, Key("warm_up", COUNT, "runs before each timed one, default 1"),
    Key("profile", FLAG, "counters by Nsight Compute, if it is installed"),
    Key("peers", TEXT, f"1 for all ({', '.join(keys.PEERS)}), 0, or names and module:function", alone="1"),
    PREDICTING, keys.MODELLED, keys.SEED, keys.LIMIT, keys.OUT, keys.MARKDOWN,
)  # fmt: skip
command(
    "sweep", "bench:run_sweep", "yes",
    "check and time a grid such as variant=tma stages=1,2,3 lanes=4,8, resumable",
    keys.OUT, keys.REPEATS, keys.SEED, keys.LIMIT, PREDICTING, keys.MODELLED, keys.LOAD,
    Key("retry", FLAG, "again what failed before"), *keys.GRID,
    Key("gpus", keys.GPUS, "numbers of like GPUs, by commas: a process for each, instead of one for all"),
    Key("...", TEXT, "parameters of the variants: lists too, such as stages=1,2,3"), raw=True,
)  # fmt: skip
command(
    "tune", "bench:run_tune", "yes",
    "measure a few kernels on this GPU, and keep the fastest for variant=auto; or, with load=, rank parameters "
    "of a pipeline, such as stages=2,3,4, by time, virtual cycles or predicted time",
    keys.LOAD, PREDICTING, keys.MODELLED,
    Key("workload", TEXT, "presets by commas, default seeds", keys.PRESETS),
    Key("patterns", TEXT, "where samples fall, by commas, default local(2)", keys.PATTERNS), keys.DTYPE_LIST,
    Key("variants", TEXT, "what to try, default direct, tma-fastest and several windows", keys.VARIANTS),
    Key("repeats", COUNT, "timed rounds, default 30"), keys.SEED, keys.LIMIT,
    Key("out", TEXT, "a JSON file for the measurements; the answer is kept without it"),
    Key("forget", FLAG, "drop what was kept for these workloads, without workload= all of it"),
    raw=True, pipeline="bench:tune_own",
)  # fmt: skip
command(
    "table", "bench:run_table", "no",
    "the table of a result file of bench or sweep, for the terminal or as Markdown",
    keys.FILE, keys.MARKDOWN,
    Key("summary", FLAG, "variants against workloads, and what costs each of them time"),
    Key("variants", TEXT, "of a summary only these, by commas and as they stand in it"), first="file",
)  # fmt: skip
command(
    "plot", "bench:run_plot", "no",
    "the plot of a result file, or time against x=sigma, queries, stages, ...",
    keys.FILE, Key("out", TEXT, "the picture to write, .png or .svg"),
    Key("x", TEXT, "time against sigma of local(...), queries, or a parameter; a sweep's: stages",
        ("sigma", "queries")), first="file",
)  # fmt: skip
command(
    "site", "site:site", "no",
    "build the site with the lessons' outputs, and open it: from a checkout, with the extra site",
    Key("out", TEXT, "the folder to write, default build/site/html"),
    Key("open", FLAG, "0 does not open it in a browser"),
    Key("links", FLAG, "also check its links to other places, which takes a network"),
    Key("repository", TEXT, "its URL on GitHub, or owner/name: lessons open in Colab, Binder, Codespaces"),
    Key("pyodide", TEXT, "a folder with Pyodide, for lessons in the page; else it comes from its own address"),
)  # fmt: skip
command(
    "cache", "cache:cache", "no",
    "compiled code that is kept on disk: where and how much;  cache clear removes it",
    Key("action", one_of("show", "clear"), "which one; it may stand alone, default show"), first="action",
)  # fmt: skip
command(
    "completion", "completion:completion", "no",
    "completion bash, completion zsh: a script for the shell",
    Key("shell", one_of("bash", "zsh"), "which one; it may stand alone"),
    Key("line", TEXT, "what the script asks: a command line whose last word is to be completed"), first="shell",
)  # fmt: skip
command(
    "help", "commands:help", "no",
    "this text;  help COMMAND or COMMAND --help: its keys;  --version: the version",
    Key("command", TEXT, "which one; it may stand alone", tuple(COMMANDS)), first="command",
)  # fmt: skip

USAGE = f"""\
Multi-scale deformable attention in Numba CUDA, with TMA and mbarrier; no GPU? On the CPU engine.

numba-deform COMMAND key=value ...                        also --key value, --key=value, and --key for key=1
numba-deform time_limit=SECONDS COMMAND key=value ...     in a child process, which is killed if it takes longer

              GPU
{"".join(f"  {c.name:<12}{c.gpu:<8}{c.about}" + chr(10) for c in COMMANDS.values())}
GPU: either takes the GPU if there is one, else the CPU engine. bugs NAME engine=gpu needs one. For bench and
sweep, engine=cpu workload=tiny gives the CPU engine's virtual cycles instead of times.

Examples:
  numba-deform probe
  numba-deform run
  numba-deform run variant=tma stages=4 workload=tiny schedules=5 landing=random engine=cpu
  numba-deform run batch=1 spatial_size=100 num_query=100 num_heads=1 channels=32 num_levels=4 \\
      num_points=8 im2col_step=1
  numba-deform check my_program.py its arguments
  numba-deform check schedules=5 junit=faults.xml -m pytest tests/
  numba-deform check ring.ptx entry=ring grid=1 block=64 args=arguments.py
  numba-deform check program.cu options='-std=c++17 -DSTAGES=3' its arguments     # with its own main()
  numba-deform check ring.cu entry=ring grid=1 block=64 shared=65536 args=arguments.py options=-arch=sm_100a
  numba-deform check matmul.py      # Triton's, CuPy's RawKernel, or what builds an extension of PyTorch's
  numba-deform new my.py
  numba-deform run --load my.py --stages 4 --engine cpu
  numba-deform run workload=picture picture_out=out.png
  numba-deform data write dir=/tmp/quick workload=quick
  numba-deform run dir=/tmp/quick variant=direct lanes=4
  numba-deform budget variant=tma stages=1,2,3,4 threads=256,512 lanes=4 points_per_stage=1
  numba-deform timeline variant=warp-specialized stages=3 engine=cpu out=timeline.png
  numba-deform bugs parity_inverted
  numba-deform inspect variant=tma stages=3 show=sass
  numba-deform profile variant=direct lines=10 sass=1
  numba-deform bench variants=direct,tma:stages=3,lanes=4,persistent patterns=seed,'local(2)' --peers
  numba-deform bench workload=seeds,detr-encoder dtype=float16,float32 profile=1 out=bench.json
  numba-deform bench what=gradients workload=detr-encoder-b4 patterns='local(2)',uniform --peers
  numba-deform sweep variant=direct,tma-fastest patterns='local(0.5),local(2),local(8)' out=spread.json
  numba-deform tune workload=detr-encoder-b4 patterns='local(2)',uniform
  numba-deform plot file=spread.json x=sigma out=spread.png
"""


def help(options):
    """``numba-deform help``, ``help COMMAND`` and ``COMMAND --help``."""
    command = find(options.get("command", "help"))
    if command.name == "help":
        print(USAGE, end="")
        return RIGHT
    # a key whose value may stand alone is shown so: numba-deform lessons DIR
    more = " key=value ...     or --key value" if len(command.keys) > bool(command.first) else ""
    first = f" {command.first.upper()}" if command.first else ""
    more += " PROGRAM.py ... or -m MODULE ..." * command.program
    print(f"numba-deform {command.name}{first}{more}")
    can_do_without = command.gpu == "yes" and any(key.name == "engine" for key in command.keys)
    without = "; without one, engine=cpu gives virtual cycles" if can_do_without else ""
    print(f"{command.about}; {GPU[command.gpu]}{without}\n")
    rows = [(k.name, k.help + f" ({k.kind.accepts})" * (k.kind is not TEXT)) for k in command.keys]
    if keys.VARIANT in command.keys:
        rows.append(("...", "and the variant's own parameters: see numba-deform variants"))
    if command.pipeline:
        more = ", and schedules=all limit=N (every order), debug=1 (bounded waits)" * (command.name == "run")
        rows.append(("...", f"of a pipeline that load= brings: its parameters{more}, but no key of a workload"))
    for name, text in rows:
        print(f"  {name:<15} {text}")
    if command.name == "check":
        print(KERNEL)
    return RIGHT


def find(word):
    """The Command of that name; a UsageError says which there are."""
    if word in COMMANDS:
        return COMMANDS[word]
    if word.startswith("-") and "=" not in word:
        raise UsageError(f"unknown option {word}; before a command there are --help, --version and "
                         f"--time-limit SECONDS, after it --key VALUE")  # fmt: skip
    if "=" in word:
        limit = closest(word.lstrip("-").partition("=")[0], ["time_limit"])
        raise UsageError(f"there is no command before {word}{limit or f'; try: numba-deform run {word} ...'}")
    hint = closest(word, [*COMMANDS, "--version", "time_limit=SECONDS"])
    raise UsageError(f"unknown command {word}{hint} (there are {', '.join(COMMANDS)})")


def refuse(error):
    """Bad input, in one line."""
    print(f"numba-deform: {error}", file=sys.stderr)
    return BAD_INPUT
