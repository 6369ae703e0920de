"""Barriers, fences and the making of tensor maps: the forms that no intrinsic of this package has."""

from ..instructions import kinds_of, only
from ..parser import BadPtx
from .accesses import ORDERS, SCOPES, words_of


# --- barriers of threads ------------------------------------------------------------------------------
def do_bar(values, i):
    what = next((p for p in ("red", "arrive", "warp", "sync") if p in i.parts), None)
    only(i, ("sync", "arrive", "warp", "red", "cta", "aligned", "popc", "and", "or"))
    operands = i.operands
    if what == "warp":
        return [f"cuda.syncwarp({values.value(operands[0], 'u32')})"]
    if what == "red":
        return _vote(values, i, next(p for p in ("popc", "and", "or") if p in i.parts))
    if what == "sync" and operands == ["0"]:
        return ["cuda.syncthreads()"]
    if what not in ("sync", "arrive") or not 1 <= len(operands) <= 2 or what == "arrive" and len(operands) < 2:
        raise BadPtx(f"{i.opcode} {', '.join(operands)}")
    count = values.value(operands[1], "u32") if len(operands) > 1 else "block_threads()"
    return [f"bar_{what}({values.value(operands[0], 'u32')}, {count})"]


def _vote(values, i, how):
    target, number, *count, predicate = i.operands
    truth = values.value(predicate, "pred")
    if number == "0" and not count:
        text = f"cuda.syncthreads_{'count' if how == 'popc' else how}({truth})"
    else:
        count = values.value(count[0], "u32") if count else "block_threads()"
        text = f"barrier_vote({how!r}, {values.value(number, 'u32')}, {count}, {truth})"
    return [values.set(target, kinds_of(i)[-1], text if how == "popc" else f"{text} != 0")]


FENCES = {  # those without an intrinsic of their own name, or with one of Numba's
    "membar.cta": "cuda.threadfence_block()", "membar.gl": "cuda.threadfence()",
    "membar.sys": "cuda.threadfence()", "fence.sc.cta": "cuda.threadfence_block()",
    "fence.sc.gpu": "cuda.threadfence()", "fence.sc.sys": "cuda.threadfence()",
    "fence.sc.cluster": "fence_sc_cluster()", "fence.acq_rel.sys": "fence_acq_rel_gpu()",
    **{f"fence.{half}.{scope}": f"fence_half({half == 'acquire'}, {scope!r})"
       for half in ("acquire", "release") for scope in SCOPES},
    "fence.proxy.alias": "pass",  # memory has one address here
    # One half each of what orders both ways; taken for the whole.
    "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster": "fence_proxy_async()",
    "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster": "fence_proxy_async_cluster()",
}  # fmt: skip


def do_fence(values, i):
    if i.parts[:4] == ["fence", "proxy", "tensormap::generic", "acquire"]:
        only(i, ("proxy", "tensormap::generic", "acquire", *SCOPES))
        return [f"map_is_there({values.address(i.operands[0], '')})"]
    if i.opcode not in FENCES:
        raise BadPtx(i.opcode)
    return [FENCES[i.opcode]]


# --- mbarriers ----------------------------------------------------------------------------------------
def do_mbarrier(values, i):
    """What is relaxed is known of barriers of one's own block."""
    what, parts, operands = i.parts[1], i.parts[2:], list(i.operands)
    known = {*ORDERS, "cta", "cluster", "shared", "shared::cta", "shared::cluster", "b64", "parity",
             "expect_tx", "noComplete"}  # fmt: skip
    relaxed = "relaxed" in parts and what not in ("expect_tx", "complete_tx")
    if set(parts) - known or relaxed and {"shared::cluster", "noComplete"} & set(parts):
        raise BadPtx(i.opcode)
    if what in ("arrive", "arrive_drop"):
        state, place, *more = operands
        number = values.value(more[0], "u32") if more else None
        expected, count = (number, "1") if "expect_tx" in parts else ("None", number or "1")
        options = f"{what == 'arrive_drop'}, {'noComplete' not in parts}"
        name = "relaxed_arrival" if relaxed else "barrier_arrive"
        call = f"{name}({values.address(place, 'shared')}, {count}, {expected}, {options})"
        return [values.set(state, "b64", call, True)]
    if what in ("test_wait", "try_wait"):
        truth, place, wanted = operands[:3]  # how long to wait at most is left aside
        value = values.value(wanted, "u32" if "parity" in parts else "u64")
        options = f"{'parity' in parts}, {what == 'try_wait'}, {'cluster' in parts}"
        name = "relaxed_wait" if relaxed else "barrier_wait"
        call = f"{name}({values.address(place, 'shared')}, {value}, {options})"
        return [values.set(truth, "pred", f"{call} != 0")]
    if what in ("expect_tx", "complete_tx"):
        place, count = operands
        return [f"barrier_bytes({what!r}, {values.address(place, 'shared')}, {values.value(count, 'u32')})"]
    raise BadPtx(i.opcode)


# --- tensor maps --------------------------------------------------------------------------------------
FIELDS = {
    "global_address": "address", "rank": "rank", "box_dim": "box", "global_dim": "dims",
    "global_stride": "strides", "element_stride": "element_strides", "elemtype": "dtype",
    "interleave_layout": "interleave",
    "swizzle_mode": "swizzle", "fill_mode": "fill",
}  # fmt: skip


def do_tensormap(values, i):
    if i.parts[1] == "cp_fenceproxy":
        return [f"publish_map({values.address(i.operands[0], '')}, {values.address(i.operands[1], 'shared')})"]
    only(i, ("replace", "tile", "shared::cta", "b1024", *FIELDS))
    field, (place, *ordinal, value) = FIELDS[i.parts[3]], i.operands
    value = values.value(value, kinds_of(i)[-1])
    value = f"{value} + 1" if field == "rank" else value
    number = ordinal[0] if ordinal else "None"
    return [f"replace_map({values.address(place, 'shared')}, {field!r}, {value}, {number})"]


def do_createpolicy(values, i):
    """A policy changes no result; what is made of a range or a descriptor is taken for a normal one."""
    priority = next((p.partition("::")[2] for p in i.parts if p.startswith("L2::")), "evict_normal")
    given = i.operands[1:] if i.parts[1] == "fractional" else ()
    fraction = values.value(given[0], "f64") if given else "1.0"
    return [values.set(i.operands[0], "b64", f"cache_policy({priority!r}, {fraction})", True)]


def do_launch_control(values, i):
    """clusterlaunchcontrol: a cluster that has not started is asked for, and the answer is looked at."""
    what, words, operands = i.parts[1], set(i.parts[2:]), i.operands
    everywhere = "multicast::cluster::all" in words
    if what == "try_cancel" and words - {"shared::cta", "multicast::cluster::all"} == REQUEST:
        places = ", ".join(values.address(o, "shared") for o in operands)
        return [f"try_cancel({places}, {everywhere})"]
    if what != "query_cancel" or words - {"v4"} not in QUERIES:
        raise BadPtx(i.opcode)
    answer = values.value(operands[1], "b128")
    if "pred" in words:
        return [values.set(operands[0], "pred", f"is_canceled({answer})")]
    axis = next((n for n, a in enumerate("xyz") if f"get_first_ctaid::{a}" in words), None)
    targets = [operands[0]] if axis is not None else words_of(operands[0])[:3]
    t = [values.temporary() for _ in range(3)]
    taken = t if axis is None else t[axis : axis + 1]
    kept = (values.set(r, "u32", x, True) for r, x in zip(targets, taken, strict=True) if r != "_")
    return [f"{', '.join(t)} = first_block({answer}, {values.program.is_tritons})", *kept]


REQUEST = {"async", "mbarrier::complete_tx::bytes", "b128"}
QUERIES = ({"is_canceled", "pred", "b128"}, {"get_first_ctaid", "b32", "b128"},
           *({f"get_first_ctaid::{axis}", "b32", "b128"} for axis in "xyz"))  # fmt: skip
ROWS = {
    "bar": do_bar, "barrier": do_bar, "fence": do_fence, "membar": do_fence, "mbarrier": do_mbarrier,
    "clusterlaunchcontrol": do_launch_control,
    "tensormap": do_tensormap, "createpolicy": do_createpolicy,
}  # fmt: skip
