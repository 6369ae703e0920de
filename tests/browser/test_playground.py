"""The playground's barrier, in a browser, does what the engine's does: over a thousand random sequences."""

import random
import re
from pathlib import Path

import lab
import numpy as np
import pytest

import numba_deform as nd
from numba_deform.engines.cpu import SimFault

SITE = Path(__file__).resolve().parents[2] / "notebooks" / "site"
THREADS, LONGEST, NOT_RUN = 3, 24, 7
ARRIVE, EXPECT, BOTH, COMPLETE, LOOK = range(5)

# What both kernels do: row i waits for its turn, looks at a barrier and keeps what it saw, hands the turn on.
ITS_TURN = """setp.ne.u32 p, who, me;
@p bra skip;
again:
ld.relaxed.gpu.global.u32 t, [turn];
setp.ne.u32 p, t, i;
@p bra again;
"""
A_LOOK = """mbarrier.test_wait.parity.shared::cta.b64 q, [b], x;
selp.u32 r, 1, 0, q;
mad.wide.u32 at, i, 4, out;
st.global.u32 [at], r;
bra done;
"""
NEXT = """done:
add.u32 t, t, 1;
st.relaxed.gpu.global.u32 [turn], t;
skip:
add.u32 i, i, 1;
bra next;
end:
ret;
}
"""

# Each thread takes its operations in turn. Relaxed accesses order them in time, and no thread learns by them
# what another has done: for that there is the barrier alone.
KERNEL = """.version 9.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u32 p3, .param .u32 p4)
{
.reg .b32 i, n, t, me, who, what, x, b, c, r; .reg .b64 table, out, turn, at, z; .reg .pred p, q;
.shared .align 8 .b64 bar;
ld.param.u64 table, [p0]; ld.param.u64 out, [p1]; ld.param.u64 turn, [p2];
ld.param.u32 n, [p3]; ld.param.u32 c, [p4];
mov.u32 me, %tid.x;
mov.u32 b, bar;
setp.ne.u32 p, me, 0;
@p bra meet;
mbarrier.init.shared::cta.b64 [b], c;
meet:
bar.sync 0;
mov.u32 i, 0;
next:
setp.ge.u32 p, i, n;
@p bra end;
mad.wide.u32 at, i, 12, table;
ld.global.u32 who, [at]; ld.global.u32 what, [at+4]; ld.global.u32 x, [at+8];
""" + ITS_TURN + """setp.eq.u32 p, what, 0; @p bra arrive;
setp.eq.u32 p, what, 1; @p bra expect;
setp.eq.u32 p, what, 2; @p bra both;
setp.eq.u32 p, what, 3; @p bra complete;
""" + A_LOOK + """arrive: mbarrier.arrive.shared::cta.b64 z, [b], x; bra done;
expect: mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [b], x; bra done;
both: mbarrier.arrive.expect_tx.shared::cta.b64 z, [b], x; bra done;
complete: mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [b], x;
""" + NEXT

ARRIVALS = {"arrive:": "by arrive", "both:": "by arrive.expect_tx"}
LINES = enumerate(KERNEL.splitlines(), 1)
BY = {number: ARRIVALS[line.split()[0]] for number, line in LINES if line.startswith(tuple(ARRIVALS))}

# The same in the page: [looks, the kind of fault or "", what is said, the state]
TWIN = """
return arguments[0].map(([count, operations]) => {
    const bar = new Barrier(new Machine(arguments[1]), "bar[0]", count), looks = [];
    const steps = [
        (who, x) => bar.arrive(who, x), (who, x) => bar.expect(who, x), (who, x) => bar.arriveExpect(who, x),
        (who, x) => bar.complete(x), (who, x) => looks.push(Number(bar.wait(who, x))),
    ];
    try {
        for (const [who, what, x] of operations) steps[what](who, x);
    } catch (fault) {
        if (!(fault instanceof Fault)) throw fault;
        return [looks, fault.kind, fault.what, fault.state];
    }
    return [looks, "", "", ""];
});
"""


def sequence(number):
    """(arrivals that the barrier expects, [(thread, operation, operand)]): mostly what is allowed."""
    pick = random.Random(number)
    operations = []
    while len(operations) < LONGEST:
        thread, what = pick.randrange(THREADS), pick.choices(range(5), (4, 1, 1, 2, 3))[0]
        if what in (ARRIVE, BOTH) and pick.random() < 0.8:  # it learns of the phase before
            operations += [(thread, LOOK, 0), (thread, LOOK, 1)]
        if what == ARRIVE:
            operand = pick.choices((1, 2, 0), (12, 2, 0.2))[0]
        elif what == LOOK:
            operand = pick.choices((0, 1, 2), (12, 12, 0.3))[0]
        else:
            operand = pick.choices((16, 32, 1 << 20), (12, 3, 0.2))[0]
        operations.append((thread, what, operand))
    return pick.choice((1, 1, 2, 3)), operations[:LONGEST]


def engine(kernel, count, operations):
    """What the engine says of it, as TWIN returns it: by which instruction somebody arrived, for its line."""
    out, turn = np.full(LONGEST, NOT_RUN, np.uint32), np.zeros(1, np.uint32)
    said = ["", "", ""]
    try:
        nd.simulate(kernel, 1, THREADS, [np.array(operations, np.uint32), out, turn, len(operations), count])
    except SimFault as fault:
        what = re.sub(r"at <ptx \w+>:(\d+)", lambda line: BY[int(line[1])], fault.what)
        said = [type(fault).__name__, what, f"{fault.barrier}: {fault.state}"]
    return [[int(look) for look in out if look != NOT_RUN], *said]


@pytest.mark.full
def test_a_thousand_sequences():
    pytest.importorskip("selenium", reason="no selenium: pip install -e '.[test]'")
    kernel, sequences = nd.from_ptx(KERNEL)["k"], [sequence(number) for number in range(1000)]
    with lab.browser() as driver:
        driver.get("about:blank")
        twin = driver.execute_script((SITE / "barrier.js").read_text() + TWIN, sequences, THREADS)
    right = [engine(kernel, *each) for each in sequences]
    assert [(each, a, b) for each, a, b in zip(sequences, right, twin, strict=True) if a != b] == []
    assert {kind for _, kind, *_ in right} == {
        "", "BadCount", "TooManyArrivals", "UnobservedPhase", "MissedPhase", "MoreBytesThanExpected",
    }  # fmt: skip


def test_bytes_by_complete_tx_alone():
    """More of them than were expected, and no copy is to blame: a fault of the kernel, not of the engine."""
    operations = [(0, COMPLETE, 16), (0, LOOK, 0), (1, ARRIVE, 1)]
    looks, kind, what, state = engine(nd.from_ptx(KERNEL)["k"], 1, operations)
    assert looks == [0] and kind == "MoreBytesThanExpected" and what.startswith("16 bytes more than expected")
    assert state == "bar[0]: phase 0, pending 0 of 1, tx-count -16"
