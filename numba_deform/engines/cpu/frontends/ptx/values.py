"""Registers, operands and results of PTX as Python: an integer of any type is an int from 0 to the most that
its bits hold, f32 an np.float32, f64 a float, a predicate a bool."""

import keyword
import math
import re
import struct

from .parser import SIZES, BadPtx, Variable

INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
DECIMAL = re.compile(r"-?\d+\.\d*(?:[eE][-+]?\d+)?$")
FLOAT = re.compile(r"0([fFdD])([0-9a-fA-F]+)$")
ADDRESS = re.compile(r"([\w$%.]+?)\s*(?:\+\s*(-?\w+))?$")
SPECIAL = {
    **{f"%{a}.{x}": f"cuda.{b}.{x}" for a, b in (
        ("tid", "threadIdx"), ("ntid", "blockDim"), ("ctaid", "blockIdx"), ("nctaid", "gridDim"))
        for x in "xyz"},
    **{f"%cluster_ctaid.{x}": f"cluster_ctaid_{x}()" for x in "xyz"},
    **{f"%cluster_nctaid.{x}": f"special('cluster_nctaid.{x}')" for x in "xyz"},
    **{f"%clusterid.{x}": f"(cuda.blockIdx.{x} // special('cluster_nctaid.{x}'))" for x in "xyz"},
    **{f"%nclusterid.{x}": f"(cuda.gridDim.{x} // special('cluster_nctaid.{x}'))" for x in "xyz"},
    **{f"%{name}": f"special({name!r})" for name in (
        "nwarpid", "smid", "nsmid", "gridid", "is_explicit_cluster", "total_smem_size")},
    "WARP_SZ": "32", "%clock_hi": "(clock64() >> 32)", "%globaltimer_lo": "globaltimer()",
    "%globaltimer_hi": "(globaltimer() >> 32)",
    "%laneid": "cuda.laneid", "%warpid": "warp()", "%clock": "clock64()", "%clock64": "clock64()",
    "%globaltimer": "globaltimer()", "%cluster_ctarank": "cluster_ctarank()",
    "%cluster_nctarank": "cluster_nctarank()", "%dynamic_smem_size": "dynamic_bytes()",
    "%envreg1": "grid_workspace.address >> 32", "%envreg2": "grid_workspace.address",
    "%lanemask_eq": "1 << cuda.laneid", "%lanemask_lt": "(1 << cuda.laneid) - 1",
    "%lanemask_le": "(2 << cuda.laneid) - 1", "%lanemask_gt": "-(2 << cuda.laneid)",
    "%lanemask_ge": "-(1 << cuda.laneid)",
}  # fmt: skip
FLOATS = ("f32", "f64")
# A cooperative launch has it, at the address in these two: this_grid().sync() counts blocks there.
WORKSPACE = Variable("%envreg2", "global", "b8", 8, 64, True)


def bits_of(kind):
    return 8 * SIZES[kind]


def mask_of(kind):
    return (1 << bits_of(kind)) - 1


def is_signed(kind):
    return kind[0] == "s"


def python_name(wanted, taken):
    """A Python name that is not among ``taken``, where it is noted."""
    name = re.sub(r"\W", "_", wanted)
    while name in taken or keyword.iskeyword(name) or name[:1].isdigit():
        name = f"{name}_" if not name[:1].isdigit() else f"_{name}"
    taken.add(name)
    return name


class Values:
    """Of one function. ``registers``: name -> (Python name, class), ``names``: those that are taken."""

    def __init__(self, function, names):
        self.function, self.names = function, names
        self.classes = dict(function.registers)
        self._find_floats()
        self.registers = {r: self.name_for(r.lstrip("%")) for r in self.classes}
        self.temporaries, self.carried = 0, None
        self.addresses = {}  # variable -> (Python expression of its address, its space)
        self.params = {}  # parameter -> (Python expression of what it holds, Variable)

    def name_for(self, wanted):
        return python_name(wanted, self.names)

    def temporary(self):
        self.temporaries += 1
        return self.name_for(f"t{self.temporaries}")

    def carry(self):
        """The variable that holds the carry."""
        if self.carried is None:
            self.carried = self.name_for("carry")
        return self.carried

    def _find_floats(self):
        """Registers of bits that only ever take floats, as LLVM has them, are floats; so are those that they
        are moved to, and nothing else is."""
        given = {}
        for i in self.function.instructions:
            if i.operands and i.root not in ("st", "red", "bra", "bar"):
                kinds = [p for p in i.parts if p in SIZES]
                first = i.root in ("cvt", "set", "wgmma", "wmma")  # which of the types is that of the result
                kind = kinds[0 if first else -1] if kinds else None
                if i.root == "mov" and not i.operands[0].startswith("{"):
                    kind = self._moved(i.operands[-1], kind)
                for register in re.findall(r"[%\w$]+", i.operands[0]):
                    given.setdefault(register, set()).add(kind)
        bits = {register: f"f{kind[1:]}" for register, kind in self.classes.items() if kind in ("b32", "b64")}
        floats = {register: kind for register, kind in bits.items() if register in given}
        while True:
            like = {r: {floats.get(k, k) for k in given[r]} for r in floats}
            kept = {r: kind for r, kind in floats.items() if like[r] == {kind}}
            if len(kept) == len(floats):
                break
            floats = kept
        self.classes |= floats

    @staticmethod
    def _moved(source, kind):
        """The kind of what ``mov`` takes from a source: the register that it is, or the type of a number."""
        if m := FLOAT.match(source):
            return f"f{32 if m[1] in 'fF' else 64}"
        return source if re.match(r"[%$_A-Za-z]", source) else kind

    # --- operands ---------------------------------------------------------------------------------
    def value(self, text, kind):
        """An operand as a Python expression, of a PTX type."""
        if text in self.registers:
            return self.converted(self.registers[text], self.classes[text], kind)
        if text.startswith("!"):
            return f"(not {self.value(text[1:], kind)})"
        if m := FLOAT.match(text):
            return self._float(m[1].lower(), m[2], kind)
        if INTEGER.match(text):
            return self._integer(int(text.rstrip("U"), 0), kind)
        if DECIMAL.match(text):
            return f"float32({text})" if kind == "f32" else f"({float(text)!r})"
        if text in SPECIAL and kind == "pred":
            return SPECIAL[text]
        if text in SPECIAL:
            return f"({SPECIAL[text]} & {mask_of(kind):#x})" if bits_of(kind) <= 32 else f"({SPECIAL[text]})"
        m = ADDRESS.match(text)
        if m and m[1] in self.addresses:
            more = f" + {m[2]}" if m[2] else ""
            return f"({self.addresses[m[1]][0]}{more})"
        if m and m[1] in self.params and self.params[m[1]][1].array:
            return f"({self.params[m[1]][0]} + {m[2] or 0})"
        raise BadPtx(f"the operand {text}")

    @staticmethod
    def converted(name, own, kind):
        """A value of one class as one of a PTX type."""
        if own == kind or "pred" in (own, kind):
            return name
        if own in FLOATS and kind not in FLOATS:
            name, own = f"u{own[1:]}_of({name})", f"b{own[1:]}"
        if kind in FLOATS:
            return name if own in FLOATS else f"f{kind[1:]}_of({name} & {mask_of(kind):#x})"
        if bits_of(own) > bits_of(kind):
            name = f"({name} & {mask_of(kind):#x})"
        if is_signed(kind):
            top = 1 << bits_of(kind) - 1
            return f"(({name} ^ {top:#x}) - {top:#x})"
        return name

    @staticmethod
    def _float(letter, digits, kind):
        own = "f32" if letter == "f" else "f64"
        bits = int(digits, 16)
        if kind not in FLOATS:
            return f"{bits:#x}"
        content = bytes.fromhex(digits.zfill(bits_of(own) // 4))
        number = struct.unpack(">f" if own == "f32" else ">d", content)[0]
        if own != kind:
            raise BadPtx(f"0{letter}{digits}, which is no {kind}")
        if not math.isfinite(number):
            return f"f{kind[1:]}_of({bits:#x})"
        return f"float32({number!r})" if kind == "f32" else f"({number!r})"

    @staticmethod
    def _integer(number, kind):
        if kind == "pred":
            return str(bool(number))
        if kind in FLOATS:
            return f"float32({number})" if kind == "f32" else f"({number}.0)"
        number &= mask_of(kind)
        if is_signed(kind) and number >> bits_of(kind) - 1:
            number -= 1 << bits_of(kind)
        return f"({number})" if number < 0 else str(number)

    def address(self, text, space):
        """``[register + number]`` as an address: 32 bits of shared memory, else 64."""
        m = ADDRESS.match(text.strip("[] "))
        if m is None:
            raise BadPtx(f"the address {text}")
        kind = "u32" if space.startswith("shared") else "u64"
        base, offset = self.value(m[1], kind), int(m[2] or "0", 0)
        return f"({base} {'-' if offset < 0 else '+'} {abs(offset)} & {mask_of(kind):#x})" if offset else base

    def is_wider(self, register, kind):
        own = self.classes.get(register, "pred")
        return own != "pred" and bits_of(own) > bits_of(kind)

    # --- results ------------------------------------------------------------------------------------
    def set(self, target, kind, text, exact=False):
        """The statement by which a register takes an expression of a PTX type; ``exact``: within its bits."""
        if target == "_":
            return text
        if target not in self.registers:
            raise BadPtx(f"the operand {target}, which is no register")
        name, own = self.registers[target], self.classes[target]
        if own == "pred":
            return f"{name} = {text}"
        if own in FLOATS and kind not in FLOATS:
            text = f"f{own[1:]}_of({text})" if exact else f"f{own[1:]}_of(({text}) & {mask_of(own):#x})"
        elif own not in FLOATS and kind in FLOATS:
            text = f"u{kind[1:]}_of({text})"
        elif own not in FLOATS and not exact:
            # What is signed fills a wider register with its sign.
            most = mask_of(own) if is_signed(kind) else min(mask_of(own), mask_of(kind))
            text = f"({text}) & {most:#x}"
        return f"{name} = {text}"

    def set_all(self, targets, kind, text):
        """The statements by which registers take a tuple's numbers, which are within their bits already."""
        own = [self.classes.get(r, "pred") for r in targets]
        fits = [kind == c or not {kind, c} & {*FLOATS} and bits_of(kind) == bits_of(c) for c in own]
        taken = [self.registers[r] if fit else self.temporary() for r, fit in zip(targets, fits, strict=True)]
        rest = [(r, t) for r, t, fit in zip(targets, taken, fits, strict=True) if not fit]
        return [f"{', '.join(taken)}, = {text}", *(self.set(r, kind, t, True) for r, t in rest if r != "_")]
