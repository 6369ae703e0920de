"""Rules that can be waived: programs that break one are refused, and clean with its name; wrong neighbours are
refused with all names."""

import pickle

import numpy as np
import pytest
from base import LANDINGS, load
from numba import cuda, int32
from test_cures import check_report

import numba_deform as nd
from numba_deform.engines.cpu import SimFault, explore, simulate
from numba_deform.engines.waivers import WAIVERS, added, told

PROGRAMS = load("waived")
WAIVED = [name for name, program in PROGRAMS.items() if program.waiver]
# their other stores could go unordered
IN_PART = {"one_thread_stores_something_else_before", "the_lanes_of_a_warp_store_from_two_tiles"}
NEIGHBOURS = sorted(PROGRAMS.keys() - set(WAIVED))


def test_every_waiver_is_asked():
    asked = {PROGRAMS[name].waiver for name in WAIVED}
    assert asked | {"alloc-fence"} == set(WAIVERS)  # of that tests/ptx/test_tcgen05.py has the programs


@pytest.mark.parametrize("name", WAIVED)
def test_refused_and_told(name):
    program = PROGRAMS[name]
    others = tuple(set(WAIVERS) - {program.waiver})
    for compiled in (False, True):
        with pytest.raises(SimFault) as caught:
            program.run(compiled=compiled, waive=others)
        fault = pickle.loads(pickle.dumps(caught.value))
        assert program.blames(fault) and fault.waiver == program.waiver, str(fault)
        assert f"waive={program.waiver}" in str(fault) and WAIVERS[program.waiver].why in str(fault)


@pytest.mark.parametrize("name", WAIVED)
def test_clean_and_told(name):
    program, seen = PROGRAMS[name], set()
    for seed in range(3):
        for compiled in (False, True):
            args, options = program.args(), {"cluster": program.cluster, "compiled": compiled, "seed": seed}
            report = simulate(
                program.kernel, program.grid, program.block, args, landing=LANDINGS[seed], waive=program.waiver,
                **options,
            )  # fmt: skip
            assert program.wrong(args) == 0
            [(waiver, (count, lines))] = report.waived.items()
            assert waiver == program.waiver and count >= len(lines)
            seen.add((seed, count, lines))
            file = program.function.__code__.co_filename.rpartition("/")[2]
            assert set(lines) <= {f"{file}:{line}" for line in program.lines}
    assert len(seen) == 3, "as machine code it says the same"


@pytest.mark.parametrize("name", [name for name in WAIVED if PROGRAMS[name].names])
def test_who_wants_no_waiver_is_told_the_mend(name):
    check_report(PROGRAMS[name])
    mended = PROGRAMS[name].mended()
    for seed, landing in enumerate(LANDINGS):
        assert mended.wrong(mended.run(landing=landing, seed=seed)) == 0


@pytest.mark.parametrize("name", [n for n in WAIVED if PROGRAMS[n].explorable and not PROGRAMS[n].cluster])
def test_explored(name):
    program = PROGRAMS[name]
    what = program.kernel, program.grid, program.block, program.args()
    tried = explore(*what, limit=20, waive=[program.waiver])
    assert list(tried.waived) == [program.waiver] and f"; waived {program.waiver}: " in str(tried)


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_neighbours_stay_refused(name):
    """Whatever the order of the threads; and where no waiver is on, nobody is told that one would help."""
    program = PROGRAMS[name]
    for seed in range(5):
        for compiled in (False, True):
            with pytest.raises(SimFault) as caught:
                program.run(seed=seed, compiled=compiled)
            assert program.blames(caught.value), str(caught.value)
            with pytest.raises(SimFault) as caught:
                program.run(seed=seed, compiled=compiled, waive=())
            assert caught.value.waiver is None or name in IN_PART, str(caught.value)


def test_maps_that_a_kernel_has_made_stay_refused():
    program = load("instructions")["acquires_its_map_once"]
    with pytest.raises(SimFault) as caught:
        program.run(waive=tuple(WAIVERS))
    assert program.blames(caught.value) and caught.value.waiver is None


def test_totals_of_several_schedules():
    program = PROGRAMS["all_threads_fill_one_cell"]

    def waived(**options):
        report = simulate(program.kernel, 1, 64, program.args(), waive=("same-value",), **options)
        return report.waived["same-value"]

    one, two = waived(seed=0), waived(seed=1)
    assert waived(schedules=2) == (one[0] + two[0], one[1])
    assert added({"a": (1, ("x",))}, {"a": (2, ("w", "x")), "b": (1, ("y",))}) == {
        "a": (3, ("w", "x")), "b": (1, ("y",)),
    }  # fmt: skip


def test_a_right_run_waives_nothing():
    def kernel(out):
        out[cuda.grid(1)] = 1
        cuda.cg.this_grid().sync()
        if cuda.grid(1) > 20:
            return
        out[cuda.grid(1)] = out[63 - cuda.grid(1)]

    def ticket(out):
        if cuda.threadIdx.x == 0:
            out[1 + cuda.blockIdx.x] = 1
            cuda.threadfence()
            last = cuda.atomic.add(out, 0, 1) == 1
            cuda.threadfence()
            if last:
                out[3] = out[1] + out[2]

    for function in (kernel, ticket):
        report = simulate(function, 2, 32, [np.zeros(64, np.int32)], waive=tuple(WAIVERS), schedules=2)
        assert report.waived == {}


def test_who_shows_no_report_warns():
    @nd.kernel(threads=32)
    def kernel(out: nd.float32[:]):
        out[0] = 1

    with pytest.warns(UserWarning, match=r"^waived same-value: 31 times, at test_waivers.py:\d+$"):
        told(simulate(kernel, 1, args=[np.zeros(1, np.float32)], waive="same-value"))


@pytest.mark.parametrize("waive", ["same_value", ("same-value", "all")])
def test_unknown_names(waive):
    with pytest.raises(ValueError, match="none of the rules that can be waived: same-value, init-fence, a"):
        PROGRAMS[WAIVED[0]].run(waive=waive)


@pytest.mark.parametrize("landing", LANDINGS)
def test_stores_at_the_exit_are_counted_once_a_thread(landing):
    """However many there are, and whether or not they have landed by then."""

    def kernel(out):
        tile = cuda.shared.array(8, int32, 16)
        if cuda.threadIdx.x < 8:
            tile[cuda.threadIdx.x] = 7
        nd.fence_proxy_async()
        cuda.syncthreads()
        if cuda.threadIdx.x % 16 == 0:
            for i in range(2):
                place = nd.global_at(nd.global_address(out), 2 * cuda.threadIdx.x // 4 + 4 * i, 4)
                nd.cp_async_bulk_store(place, nd.shared_address(tile), 16)
                nd.cp_async_bulk_commit_group()

    out = np.zeros(16, np.int32)
    report = simulate(kernel, 1, 32, [out], landing=landing, waive="store-at-exit")
    assert report.waived["store-at-exit"][0] == 2 and (out == 7).all()
