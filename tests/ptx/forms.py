"""Forms of instructions, one each of what Hopper code contains: those that the front end knows
(forms_known.txt), and those that it refuses by name (forms_refused.txt). ptxas takes all of them for sm_90a,
those of tcgen05, and what else came with Blackwell (forms_.._sm100a.txt), for sm_100a."""

from pathlib import Path


def forms(which):
    return (Path(__file__).parent / f"forms_{which}.txt").read_text().splitlines()


BLACKWELLS = {*forms("known_sm100a"), *forms("refused_sm100a")}
KNOWN, REFUSED = (forms(which) + forms(f"{which}_sm100a") for which in ("known", "refused"))
HEAD = ".version 8.8\n.target {}\n.address_size 64\n"
REGISTERS = ".reg .pred p, q; .reg .b32 a, b, c, d, t; .reg .b64 x, y, z; .reg .b16 h;"
REGISTERS += ".reg .f32 f, g; .reg .f64 e; .reg .b8 k; .reg .b128 w;"


def is_blackwells(form):
    return form.startswith("tcgen05") or "cta_group" in form or form in BLACKWELLS


def text_of(*forms):
    """A kernel of these instructions, from line 6 on."""
    head = HEAD.format("sm_100a" if any(map(is_blackwells, forms)) else "sm_90a")
    lines = [head + f".visible .entry k(.param .u64 data) {{ {REGISTERS}", "ld.param.u64 y, [data];"]
    return "\n".join([*lines, *(f"{form};" for form in forms), "ret;", "}"]) + "\n"
