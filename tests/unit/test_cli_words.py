"""Words of the command line: spellings, help and completion that import nothing heavy, close matches, load=."""

import os
import shutil
import subprocess
import sys

import pytest

from numba_deform.cli import keys
from numba_deform.cli.commands import COMMANDS
from numba_deform.cli.completion import BASH, ZSH, replies
from numba_deform.cli.keys import COUNT, FLAG, TEXT, Key, UsageError, parse_pairs, split_pairs

KEYS = (Key("num_query", COUNT, ""), Key("padded", FLAG, ""), Key("corner", keys.CORNER, ""),
        Key("peers", TEXT, "", alone="1"), Key("variants", TEXT, ""), Key("name", TEXT, ""))  # fmt: skip


# --- spellings ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "words, pairs",
    [
        ("num_query=64", {"num_query": "64"}),
        ("num-query=64", {"num_query": "64"}),
        ("--num_query=64", {"num_query": "64"}),
        ("--num-query 64 name=x", {"num_query": "64", "name": "x"}),
        ("--corner -1,99", {"corner": "-1,99"}),
        ("--variants direct,tma:stages=3", {"variants": "direct,tma:stages=3"}),
        ("--padded --num-query 3", {"padded": "yes", "num_query": "3"}),
        ("--padded num_query=3", {"padded": "yes", "num_query": "3"}),
        ("--padded 0", {"padded": "0"}),
        ("--padded", {"padded": "yes"}),
        ("--peers variants=tma", {"peers": "1", "variants": "tma"}),
        ("--peers mmcv", {"peers": "mmcv"}),
        ("--peers", {"peers": "1"}),
        ("--padded fault", {"padded": "yes", "name": "fault"}),
        ("fault --padded", {"name": "fault", "padded": "yes"}),
        # those of a variant are not known yet
        ("--stages 3 --prefetch-maps --trace lanes=4", {"stages": "3", "prefetch_maps": "yes", "trace": "yes",
                                                        "lanes": "4"}),
        ("--prefetch-maps", {"prefetch_maps": "yes"}),
    ],
)  # fmt: skip
def test_spellings(words, pairs):
    assert split_pairs(words.split(), KEYS, "name") == pairs
    parse_pairs({name: text for name, text in pairs.items() if name in [k.name for k in KEYS]}, KEYS, "x")


@pytest.mark.parametrize(
    "words, says",
    [
        ("--num-query", "--num-query needs a value: a whole number of at least 1"),
        ("--num-query --padded", "--num-query needs a value"),
        ("num_query 3", "'num_query' is not of the form key=value or --key value; did you mean num_query=3?"),
        ("num_query = 3", "did you mean num_query=3?"),
        ("padded", "did you mean padded=1?"),
        ("-padded", "did you mean padded=1?"),
        ("num_qery", "'num_qery' is not of the form key=value or --key value; did you mean num_query?"),
        ("--num-query 3 num_query=4", "num_query is given twice: num_query=3 and num_query=4"),
        ("--=3", "'--=3' is not of the form"),
        ("--", "'--' is not of the form"),
        ("variants=direct, tma", "did you mean variants=direct,tma?"),
        ("corner:1,2", "did you mean corner=1,2?"),
        ("7", "'7' is not of the form key=value or --key value"),
    ],
)
def test_spellings_that_are_wrong(words, says):
    with pytest.raises(UsageError) as caught:
        split_pairs(words.split(), KEYS)
    assert says in str(caught.value)


def test_a_number_that_stands_alone_is_refused(call):
    status, _, err = call("run --stages --lanes 4 --engine cpu")
    assert status == 2 and "--stages needs a value: a whole number\n" in err


def test_a_command_takes_all_spellings(call):
    outs = [call(f"probe {words}")[:2] for words in ("engine=cpu corner=-1,99", "--engine cpu --corner -1,99",
                                                     "--engine=cpu --corner=-1,99")]  # fmt: skip
    assert outs[0][0] == 0 and "CPU engine" in outs[0][1] and outs.count(outs[0]) == 3


# --- help, version ----------------------------------------------------------------------------------
@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_and_version_of_every_command(call, command):
    told = call(f"help {command}")
    assert told[0] == 0 and told[1]
    before = "" if COMMANDS[command].program else "tma "  # what a program's name would be
    for words in ("-h", "--help", f"--variant {before}-h", "nonsense=3 --help"):
        assert call(f"{command} {words}") == told
    assert call(f"{command} --version") == call("--version") != told
    assert call(f"time_limit=5 {command} --help") == call(f"--time-limit 5 {command} -h") == told


LIGHT = """
import sys
from numba_deform.cli import main
status = main(sys.argv[1:])
heavy = {"numba", "numpy", "rich", "cuda", "llvmlite"} & {name.partition(".")[0] for name in sys.modules}
sys.exit(f"imports {heavy}" if heavy else status)
"""


@pytest.mark.parametrize(
    "words, status",
    [
        ("help", 0), ("", 0), ("--version", 0), ("run --help", 0), ("help sweep", 0), ("completion bash", 0),
        ("completion zsh", 0), ("completion --line numba-deform~bu", 0), ("rum", 2), ("probe corners=1", 2),
        ("bench --variant tma", 2), ("tile-copy --stages x", 2), ("run 5", 2),
    ],
)  # fmt: skip
def test_what_needs_no_numba_imports_none(words, status):
    words = [word.replace("~", " ") for word in words.split()]
    done = subprocess.run([sys.executable, "-c", LIGHT, *words], capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    assert done.stdout if status == 0 else done.stderr.startswith("numba-deform: ")


def test_the_public_names_are_there():
    code = """if True:
        import sys
        import numba_deform
        assert "numba" not in sys.modules and {*numba_deform.__all__, "__version__"} <= {*dir(numba_deform)}
        from numba_deform import *
        print(simulate.__module__, *(name for name in numba_deform.__all__ if name not in globals()))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "numba_deform.engines.cpu.schedules.simulate\n"
    import numba_deform

    with pytest.raises(AttributeError, match="has no attribute 'simulat'"):
        numba_deform.simulat  # noqa: B018


def test_words_are_those_of_the_modules():
    from numba_deform.attention.request import ENGINES
    from numba_deform.course.bugs import BUGS
    from numba_deform.engines.cpu.schedules.explore import LIMIT
    from numba_deform.engines.cpu.schedules.simulate import LANDINGS
    from numba_deform.kernels.problem import NUMPY_DTYPES
    from numba_deform.kernels.registry import VARIANTS, is_registered
    from numba_deform.measure.baselines import PEERS
    from numba_deform.measure.sweep import WORKLOAD_FIELDS
    from numba_deform.workloads.presets import PRESETS
    from numba_deform.workloads.workload import PATTERNS

    assert keys.VARIANTS == tuple(name for name in VARIANTS if not is_registered(name))
    assert keys.BUGS == tuple(sorted(BUGS))
    for name, theirs in (("PRESETS", PRESETS), ("DTYPES", NUMPY_DTYPES), ("PEERS", PEERS), ("ENGINES", ENGINES),
                         ("LANDINGS", LANDINGS), ("PATTERNS", PATTERNS), ("WORKLOAD_FIELDS", WORKLOAD_FIELDS)):
        assert getattr(keys, name) == tuple(theirs), name  # fmt: skip
    assert keys.EXPLORE_LIMIT == LIMIT


def test_functions_of_commands_exist():
    from importlib import import_module

    for command in COMMANDS.values():
        module, _, function = command.call.partition(":")
        assert callable(getattr(import_module(f"numba_deform.cli.{module}"), function))
        assert not command.first or command.first in [key.name for key in command.keys]


# --- close matches ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "words, meant",
    [
        ("timelin", "timeline"), ("help bnech", "bench"), ("probe crner=1,2", "corner"),
        ("probe --egine cpu", "engine"), ("probe engine=gpuu", "gpu"),
        ("run variant=windw", "window"), ("run workload=sedes", "seeds"),
        ("run landing=lat", "late"), ("run dtype=flot16", "float16"), ("run pattern=unifrm", "uniform"),
        ("run pattern=locl(2)", "local"), ("run maps=batc variant=tma engine=cpu", "batch"),
        ("bugs no_ful_wait", "no_full_wait"), ("inspect show=sas", "sass"), ("data wirte", "write"),
        ("completion bsh", "bash"), ("bench variants=drect", "direct"), ("bench workload=quik", "quick"),
        ("bench dtype=float61", "float16"), ("bench patterns=sed", "seed"),
        ("sweep variant=tma-fastst out=x", "tma-fastest"), ("bench variants=tma:stagse=1", "stages"),
        ("sweep stagse=1 out=x variant=tma", "stages"), ("budget variant=tma stagse=1", "stages"),
        ("run tma", "variant=tma"), ("run tiny", "workload=tiny"), ("time_limt=5 probe", "time_limit"),
        ("version", "--version"), ("time_limit 5 probe", "time_limit=SECONDS"),
    ],
)  # fmt: skip
def test_a_close_match_is_suggested(call, words, meant):
    status, _, err = call(words)
    assert status == 2 and f"did you mean {meant}?" in err and err.count("\n") == 1


# --- completion -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "line, found",
    [
        ("ti", ["tile-copy", "timeline"]),
        ("run sch", ["schedules=", "schedule_seed="]),
        ("run --sch", ["--schedules", "--schedule-seed"]),
        ("run schedules=3 sch", ["schedule_seed="]),
        ("run landing=", ["landing=late", "landing=random", "landing=earliest"]),
        ("run --landing ", ["late", "random", "earliest"]),
        ("run --landing=r", ["--landing=random"]),
        ("run --location-dtype b", ["bfloat16"]),
        ("run --padded lan", ["landing="]),
        ("bench variants=direct,roles-s", ["variants=direct,roles-shared", "variants=direct,roles-shuffle"]),
        ("bench --workload tiny,qu", ["tiny,quick"]),
        ("bugs parity_i", ["parity_inverted"]),
        ("bugs parity_inverted fi", ["fixed="]),
        ("data w", ["write", "workload="]),
        ("help pr", ["probe", "progress", "profile"]),
        ("time_limit=5 pro", ["probe", "progress", "profile"]),
        ("--time-limit 5 pro", ["probe", "progress", "profile"]),
        ("timeline engine=b", ["engine=both"]),
        ("timeline out=x", []),
        ("nonsense ", []),
    ],
)
def test_completion(line, found):
    assert replies(f"numba-deform {line}") == found


def test_completion_knows_all_commands_and_their_keys():
    assert set(COMMANDS) < set(replies("numba-deform "))
    for command in COMMANDS.values():
        offered = {reply.rstrip("=") for reply in replies(f"numba-deform {command.name} --")}
        names = {f"--{key.name.replace('_', '-')}" for key in command.keys} - {"--..."}
        assert offered == names | {"--help"}


SHELL = """
line={line!r}; COMP_LINE=$line; COMP_POINT=${{#line}}
_numba_deform "$PROGRAM" "${{line##*[ =:]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def program(tmp_path):
    """The command as a program of that name, of this checkout."""
    path = tmp_path / "numba-deform"
    path.write_text(f'#!/bin/sh\nPYTHONPATH={os.getcwd()} exec {sys.executable} -m numba_deform "$@"\n')
    path.chmod(0o755)
    return path


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash")
@pytest.mark.parametrize(
    "line, found",
    [
        ("numba-deform ti", "tile-copy timeline"),
        ("numba-deform run land", "landing="),
        ("numba-deform run variant=tma-fa", "tma-fastest"),  # bash replaces what comes after the =
        ("numba-deform run --variant tma-fa", "tma-fastest"),
        ("numba-deform bench variants=direct,tma-fa", "direct,tma-fastest"),
        ("numba-deform timeline out=", ""),
    ],
)
def test_completion_in_bash(program, line, found):
    script = subprocess.run([program, "completion", "bash"], capture_output=True, text=True, check=True).stdout
    assert script == BASH
    words = ["bash", "--norc", "-c", script + SHELL.format(line=line) + "complete -p"]
    environment = os.environ | {"PROGRAM": str(program)}
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    *replies, bound = done.stdout.splitlines()
    assert (" ".join(replies), done.stderr) == (found, "")
    assert bound == "complete -o default -F _numba_deform numba-deform"


@pytest.mark.skipif(not shutil.which("zsh"), reason="there is no zsh")
def test_completion_in_zsh(program):
    """The function with stand-ins for what zsh calls only while it completes."""
    code = "compdef() { }; compadd() { shift $@[(i)--]; print -l -- $@ }\n" + ZSH + (
        f"words=({program} run landing=); CURRENT=3; PREFIX=landing=; _numba_deform\n"
        f"words=({program} ti); CURRENT=2; PREFIX=ti; _numba_deform")
    done = subprocess.run(["zsh", "-f", "-c", code], capture_output=True, text=True)
    landings = ["landing=late", "landing=random", "landing=earliest"]
    assert done.stdout.split() == [*landings, "tile-copy", "timeline"]


def test_both_scripts_ask_the_same_question():
    for script in (BASH, ZSH):
        assert " completion line=" in script and "_numba_deform numba-deform" in script


# --- how a command is called ----------------------------------------------------------------------
@pytest.mark.parametrize("words, first", [
    ("help cache", "numba-deform cache ACTION"),
    ("help lessons", "numba-deform lessons DIR key=value ...     or --key value"),
    ("help progress", "numba-deform progress DIR key=value ...     or --key value"),
    ("new --help", "numba-deform new FILE key=value ...     or --key value"),
    ("help bugs", "numba-deform bugs NAME key=value ...     or --key value"),
    ("help run", "numba-deform run key=value ...     or --key value"),
])  # fmt: skip
def test_help_shows_the_word_that_stands_alone(call, words, first):
    status, out, _ = call(words)
    assert status == 0 and out.splitlines()[0] == first


@pytest.mark.parametrize("command, can", [("bench", True), ("sweep", True), ("tune", True), ("run", False)])
def test_help_says_what_does_without_a_gpu(call, command, can):
    status, out, _ = call(f"help {command}")
    assert status == 0 and ("without one, engine=cpu gives virtual cycles" in out) is can
