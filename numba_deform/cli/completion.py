"""``numba-deform completion``: scripts for bash and zsh that ask the table of commands what may come next."""

from .commands import COMMANDS, RIGHT
from .keys import UsageError

# A shell's word may end at = or :, so that only what comes after them is replaced.
BASH = r"""# numba-deform completion bash >> ~/.bashrc
_numba_deform() {
    local line=${COMP_LINE:0:COMP_POINT} IFS=$'\n' word cut=
    word=${line##* }
    [[ $COMP_WORDBREAKS == *=* && $word == *[=:]* ]] && cut=${word%"${word##*[=:]}"}
    COMPREPLY=($("$1" completion line="$line" 2>/dev/null))
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null
    COMPREPLY=("${COMPREPLY[@]#"$cut"}")
}
complete -o default -F _numba_deform numba-deform
"""
ZSH = r"""# numba-deform completion zsh >> ~/.zshrc, after compinit
_numba_deform() {
    local -a found
    found=(${(f)"$($words[1] completion line="${(j: :)words[1,CURRENT-1]} $PREFIX" 2>/dev/null)"})
    (( $#found )) || { compset -P '*='; _files; return }
    compadd -S '' -- ${(M)found:#*=}
    compadd -- ${found:#*=}
}
compdef _numba_deform numba-deform
"""


def completion(options):
    """The script of a shell, or, for its question, what may stand in place of the last word."""
    if "line" in options:
        print("".join(f"{reply}\n" for reply in replies(options["line"])), end="")
    elif "shell" not in options:
        raise UsageError("completion must be followed by bash or zsh")
    else:
        print({"bash": BASH, "zsh": ZSH}[options["shell"]], end="")
    return RIGHT


def replies(line):
    """The words that may stand in place of the last one of a command line, the program's name included."""
    _, *before, current = ["", *line.split(" ")]
    before = [word for word in before[1:] if word]
    if before and "time" in before[0] and "limit" in before[0]:
        before = before[1 if "=" in before[0] else 2 :]
    if not before:
        return [word for word in (*COMMANDS, "--help", "--version") if word.startswith(current)]
    command = COMMANDS.get(before[0])
    possible = _possible(command, before[1:], current) if command else ()
    return [word for word in possible if word.startswith(current)]


def _possible(command, before, current):
    known = {key.name: key for key in command.keys if key.name != "..."}
    asked, equals, text = current.partition("=")
    head = text[: text.rfind(",") + 1]  # of a list by commas
    last = before[-1] if before else ""
    if last.startswith("--") and "=" not in last:
        key = known.get(_name(last))
        if key and not key.by_itself and not current.startswith("--"):
            head = current[: current.rfind(",") + 1]
            return [head + value for value in key.choices]
    if equals:
        key = known.get(_name(asked))
        return [f"{asked}={head}{value}" for value in key.choices] if key else []
    left = [name for name in known if name not in map(_name, before)]
    if current.startswith("-"):
        return [f"--{name.replace('_', '-')}" for name in left] + ["--help"]
    bare = known[command.first].choices if command.first in left and not before else ()
    return [*bare, *(f"{name}=" for name in left if name != command.first)]


def _name(word):
    return word.removeprefix("--").partition("=")[0].replace("-", "_")
