"""Lesson 13, wgmma and FlashAttention: the checks, and what was measured of attention."""

import inspect
import re

import numpy as np

from ...engines import faults
from ...engines.tensormap import TensorMap, TensorMapArray
from .exercise import Wrong, error_message, exercise, require
from .results import results
from .running import run

SIDE = 64  # rows and columns of a tile


def measured():
    """{name: row} of what an H100 was measured with, from ``bench/results/attention.json``, fastest first."""
    rows = results("attention")["rows"]
    return {row["name"]: row for row in sorted(rows, key=lambda row: row["median_ms"])}


def _maps(*matrices):
    return [TensorMapArray([TensorMap.of(m, (SIDE, SIDE), swizzle="128B")]) for m in matrices]


# --- one product ----------------------------------------------------------------------------------
IN_FLIGHT = (
    ("has not been committed", "The products belong to no group, so the wait waits for nothing."),
    ("", "Nobody has waited for the products when the sums are read: they may still be running. Wait until at "
     "most 0 groups are open."),
)  # fmt: skip
MULTIPLY_FAULTS = {
    faults.AccumulatorInFlight: lambda fault: next(text for words, text in IN_FLIGHT if words in fault.what),
    faults.MissingWarpgroupFence: "A `wgmma_fence()` stands before the first product.",
    faults.UninitialisedRead: "The first product adds to sums that nobody has set. Its `keep` is 0: "
    "forget what was there.",
    faults.LiveBarrierAccess: "It reads far behind the tile. A descriptor counts in units of 16 bytes.",
    faults.OutOfRange: "It reads behind the tile. A descriptor counts in units of 16 bytes.",
}


@exercise(
    "16 fp16 are 32 bytes, and a descriptor counts in 16 bytes. Before the loop comes the fence; behind it "
    "commit and wait.",
    faults=MULTIPLY_FAULTS,
)
def multiply(answer, build_product, engine=None):
    """answer(sums, a, b), a device function, in the kernel build_product(answer)(a_map, b_map, out)."""
    numbers = np.random.default_rng(13).integers(-4, 5, (2, SIDE, SIDE)).astype(np.float16)
    a, b = numbers.astype(np.float32)
    for where in dict.fromkeys(("cpu", engine or "cpu")):
        out = np.full((SIDE, SIDE), np.nan, np.float32)
        run(build_product(answer), 1, [*_maps(*numbers), out], engine=where)
        if np.array_equal(out, a @ b.T):
            continue
        parts = [a[:, k : k + 16] @ b[:, k : k + 16].T for k in range(0, SIDE, 16)]
        require(not np.array_equal(out, parts[3]), "The sums are those of only the last 16 of k: each product "
                "forgets the one before. `keep` is 0 for the first one alone.")  # fmt: skip
        for part, which in zip(parts, ("first", "second"), strict=False):
            require(not np.array_equal(out, 4 * part), f"It multiplies the {which} 16 of k four times.")
        half = sum(a[:, k : k + 16] @ b[:, k : k + 16].T for k in range(0, SIDE // 2, 8))
        require(not np.array_equal(out, half), "Each product takes half of what the one before has taken: 16 "
                "elements are 32 bytes, twice 16.")  # fmt: skip
        raise Wrong(f"{np.count_nonzero(out != a @ b.T)} of {out.size} sums are wrong.")
    return "Fence, four products in one group, commit, wait. No lane has touched an element of A or B."


# --- softmax --------------------------------------------------------------------------------------
@exercise("For each query, the new largest is the old one or this tile's. By what does e^(s - old) change?")
def absorb(answer):
    """answer(largest, total, output, scores, values) -> the three with one more tile of keys."""
    rng = np.random.default_rng(3)
    scores, values = rng.standard_normal((3, 5, 8)), rng.standard_normal((3, 8, 4))
    scores += np.array([0, 3, 1])[:, None, None] + 2 * np.arange(5)[:, None]
    scores[2, :2] += 900  # whose powers are beyond float64
    largest, total, output = np.full(5, -np.inf), np.zeros(5), np.zeros((5, 4))
    for tile in range(3):
        before = largest, total, output
        with np.errstate(all="ignore"):
            try:
                got = answer(*before, scores[tile], values[tile])
            except ValueError as error:
                if not re.search(r"\((\d+),\d+\) \(\1,\)", str(error)):
                    raise
                column = "One number for each query goes with a row for each as a column: `new[:, None]`."
                raise Wrong(f"{column}\n{error_message(error)}") from None
        require(isinstance(got, (tuple, list)) and len(got) == 3, "It returns (largest, total, output).")
        right = _absorbed(*before, scores[tile], values[tile])
        for name, one, exact in zip(("largest", "total", "output"), got, right, strict=True):
            shape = np.shape(one)
            require(shape == exact.shape, f"`{name}` has the shape {shape}: it should have {exact.shape}.")
        if not all(np.allclose(x, y) for x, y in zip(got, right, strict=True)):
            raise Wrong(_what_is_wrong_with(got, right, before, scores[tile], values[tile], tile))
        largest, total, output = right
    return "One factor for a row shrinks all that came before. No score is needed twice."


def _absorbed(largest, total, output, scores, values):
    new = np.maximum(largest, scores.max(1))
    shrink, powers = np.exp(largest - new), np.exp(scores - new[:, None])
    return new, total * shrink + powers.sum(1), output * shrink[:, None] + powers @ values


def _what_is_wrong_with(got, right, before, scores, values, tile):
    here, powers = f"In tile number {tile}: ", np.exp(scores - right[0][:, None])
    same = [np.allclose(x, y) for x, y in zip(got, right, strict=True)]
    if not same[0]:
        if np.allclose(got[0], scores.max(1)):
            return here + "`new` is the largest score of this tile alone, and forgets the older ones."
        return here + "the largest score is for each query, over its own row."
    if tile == 0 and np.isnan(got[1]).all():
        return here + "the factor is upside down. Older powers get smaller: e^(old - new)."
    if tile == 0 and np.isinf(got[1]).all():
        return here + "powers are e^(score - m), where m is the new largest score, not the old one."
    with np.errstate(over="ignore"):
        plain = np.exp(scores).sum(1)
    if not np.isfinite(got[1]).all() or np.allclose(got[1], before[1] + plain):
        return here + "a power may overflow. Take the largest score so far from each score first."
    if not same[1]:
        of_two = 2 ** (scores - right[0][:, None])
        if np.allclose(got[1], before[1] * 2 ** (before[0] - right[0]) + of_two.sum(1)):
            return here + "`total` has powers of 2. The softmax takes powers of e."
        if np.allclose(got[1], before[1] + powers.sum(1)):
            return here + "the older part of `total` has to shrink, too."
        if np.allclose(got[1], before[1] * np.exp(before[0] - right[0]) + powers.sum()):
            return here + "the powers of *each* query are summed up: a sum over the keys, which are axis 1."
        return here + "`total` is wrong. It is the old one times `shrink`, and the powers of this tile."
    if np.allclose(got[2], before[2] + powers @ values):
        return here + "the older part of `output` has to shrink, too."
    if np.allclose(got[2], right[2] / right[1][:, None]):
        return here + "`output` is not divided yet: it is divided at the end, by the whole `total`."
    return here + "`output` is wrong. It is the old one times `shrink`, and powers times values."


# --- attention ------------------------------------------------------------------------------------
def _why(fault):
    """What a fault of the attention kernel has to do with the four lines."""
    text = str(fault)
    of = "keys" if "keys." in text or " k[" in text else "values"
    if isinstance(fault, faults.AccumulatorInFlight):
        return "The softmax reads scores while their product may still be running."
    if isinstance(fault, faults.Deadlock):
        ring = next((name for name in ("keys", "values") if f"waits on {name}.empty" in text), of)
        return f"The producer asks for no tile of {ring} any more: nobody gives it a stage back."
    if isinstance(fault, faults.ReadAfterRelease):
        if "has not waited" in text:
            return f"Nobody has waited for the product that reads this tile of {of}, and yet it is given back."
        return f"The product still reads the tile of {of} when it is given back. Wait first, then release."
    if isinstance(fault, faults.UnobservedPhase):
        return "Keys and values each have a ring of its own: release the tile that has been read, in its state."
    return "Look at the order: wait for the product, then give its tile back."


@exercise("`product.wait` comes before its sums are read, and before the tiles that it reads are given back.",
          faults=_why)  # fmt: skip
def attend(build, engine=None):
    """build(stages) -> the kernel (q_map, k_map, v_map, out, steps) of one block."""
    steps = 3
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((SIDE * n, SIDE)).astype(np.float16) for n in (1, steps, steps))
    powers = np.exp(q.astype(np.float64) @ k.T.astype(np.float64) / 8)
    right = powers / powers.sum(1, keepdims=True) @ v.astype(np.float64)
    kernel = build(2)
    for where in dict.fromkeys(("cpu", engine or "cpu")):
        out = np.full((SIDE, SIDE), np.nan, np.float32)
        run(kernel, 1, [*_maps(q, k, v), out, steps], engine=where)
        require(np.abs(out - right).max() < 2e-3, "No rule is broken, but the output is not attention's.")
    parts = inspect.getsource(kernel.py_func).split("to_powers(")
    for part, sums, other in zip(parts, ("scores", "total"), ("total", "scores"), strict=False):
        waits = re.findall(r"(?:product\.wait|wgmma_wait_group_n64)\(\s*(\w+)", part)
        moved = "the compiler may move its reads before the wait."
        require(not waits or sums in waits, f"You wait for `{other}` and then read `{sums}`: {moved}")
    return "Each product is waited for before its sums are read, and each stage is given back behind that."
