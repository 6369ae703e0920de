"""Blocks that take the work of others that have not started (clusterlaunchcontrol): all work is done once,
under all schedules, and what PTX leaves undefined is named. No GPU that has it has run these."""

import numpy as np
import pytest

import numba_deform as nd
from numba_deform.engines import faults

# A block notes for each tile who has done it, and how often. The second of a cluster takes the tile beside.
TEXT = """.version 8.7
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 who, .param .u64 often) CLUSTER
{
 .reg .pred p, q, more; .reg .b32 t, tile, own, rank, a, b, bar, answer, phase;
 .reg .b64 x, y, lo; .reg .b128 w;
 .shared .align 16 .b8 response[16]; .shared .align 8 .b64 barrier;
 mov.u32 t, %tid.x; mov.u32 own, %ctaid.x; mov.u32 tile, own; mov.u32 rank, %cluster_ctarank;
 mov.u32 bar, barrier; mov.u32 answer, response;
 mov.u32 phase, 0; setp.ne.u32 p, t, 0; setp.ne.or.u32 q, rank, 0, p;
 @p bra ready;
 mbarrier.init.shared::cta.b64 [bar], 1;
 fence.mbarrier_init.release.cluster;
ready:
 barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
again:
 @p bra work;
 mbarrier.arrive.expect_tx.relaxed.cta.shared::cta.b64 _, [bar], 16;
work:
 SYNC
 @q bra asked;
 REQUEST
asked:
 mov.u32 a, tile; ld.param.u64 x, [who]; mul.wide.u32 y, a, 4; add.u64 x, x, y;
 @p bra look; st.global.u32 [x], own; ld.param.u64 x, [often]; add.u64 x, x, y; red.global.add.u32 [x], 1;
look:
 mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 more, [bar], phase;
 @!more bra look;
 xor.b32 phase, phase, 1;
 ld.shared.b128 w, [answer];
 clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 more, w;
 LEAVE
 clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {tile, _, _, _}, w;
 add.u32 tile, tile, rank;
 fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;
 SYNC
 bra again;
end: ret;
}
"""
ONE = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [answer], [bar];"
ALL = ONE.replace(".b128", ".multicast::cluster::all.b128")


def text(size=1, **changes):
    parts = {"CLUSTER": "", "SYNC": "bar.sync 0;", "REQUEST": ONE, "LEAVE": "@!more bra end;"}
    if size > 1:
        parts |= {"REQUEST": ALL, "SYNC": "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"}
        parts["CLUSTER"] = f".explicitcluster .reqnctapercluster {size}, 1, 1"
    made = TEXT
    for name, part in (parts | changes).items():
        made = made.replace(name, part)
    return made


def run(made, blocks, language="ptx", **how):
    who, often = np.full(blocks, -1, np.int32), np.zeros(blocks, np.int32)
    report = nd.simulate(nd.from_ptx(made, language=language)["k"], blocks, 32, [who, often], **how)
    return who, often, report


@pytest.mark.parametrize("size", [1, 2])
def test_all_work_is_done_once(size):
    who, often, report = run(text(size), 12, resident=size)
    assert "PTX's text alone" in str(report)
    assert (often == 1).all() and (who == np.tile(range(size), 12 // size)).all()  # the first ones take all


@pytest.mark.parametrize("size", [1, 2])
def test_under_schedules(size):
    """Requests fail by chance, and then other blocks start."""
    owners = set()
    for seed in range(1, 9):
        who, often, _ = run(text(size), 12, seed=seed, resident=2 * size,
                            landing=("late", "random", "earliest")[seed % 3])  # fmt: skip
        assert (often == 1).all()
        owners.add(tuple(who.tolist()))
    assert len(owners) > 3
    run(text(size), 12, schedules=6, resident=size)


def test_a_grid_of_three_dimensions():
    made = text().replace("{tile, _, _, _}, w;", """{tile, a, b, _}, w; mad.lo.u32 tile, a, 2, tile;
 mad.lo.u32 tile, b, 6, tile;""")  # fmt: skip
    who, often = np.full(24, -1, np.int32), np.zeros(24, np.int32)
    nd.simulate(nd.from_ptx(made)["k"], (2, 3, 4), 32, [who, often])
    assert (often == 1).all() and (who == 0).all()


@pytest.mark.parametrize("changes, fault, words", [
    ({"LEAVE": ""}, faults.CancelMisuse, "get_first_ctaid"),
    ({"LEAVE": "@!more bra again;"}, faults.CancelMisuse, "had failed"),
    ({"REQUEST": ONE.replace("[answer]", "[answer+8]")}, faults.Misaligned, "multiple of 16"),
    ({"REQUEST": ""}, faults.MissingBytes, "16"),
])  # fmt: skip
def test_wrong(changes, fault, words):
    with pytest.raises(fault, match=words):
        run(text(**changes), 3)


def test_as_gluon_asks():
    """For the block at once, whatever the answer; nothing may come of it where there is none."""
    made = text(LEAVE="").replace("{tile, _, _, _}, w;", "{tile, _, _, _}, w; @!more bra end;")
    assert (run(made, 5, "gluon")[1] == 1).all()
    with pytest.raises(faults.CancelMisuse, match="get_first_ctaid"):
        run(made, 5)
    used = made.replace("@!more bra end;", "@!more st.global.u32 [x], tile; @!more bra end;")
    with pytest.raises(faults.UninitialisedRead, match="_ctaid of an answer that nothing was cancelled"):
        run(used, 5, "gluon")


def test_the_answer_is_written_by_another_proxy():
    made = text().replace("fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;", "")
    with pytest.raises(faults.MissingRefillFence):
        run(made, 3)
    made = text().replace("@!more bra look;", "").replace("try_wait", "test_wait")
    with pytest.raises(faults.InFlightRead):
        run(made, 3, landing="late")


def test_no_answer():
    made = text().replace("ld.shared.b128 w, [answer];", "mov.u64 lo, 7; mov.b128 w, {lo, lo};")
    with pytest.raises(faults.CancelMisuse, match="no answer"):
        run(made, 3)


def test_explore_refuses_it():
    who, often = np.full(2, -1, np.int32), np.zeros(2, np.int32)
    with pytest.raises(faults.KernelError, match="explore"):
        nd.explore(nd.from_ptx(text())["k"], 2, 32, [who, often])
