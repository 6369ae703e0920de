"""The playground's ring, in a browser, gives the engine's verdicts, over a thousand random sequences."""

import random

import lab
import numpy as np
import pytest
from test_playground import A_LOOK, ITS_TURN, NEXT, SITE

import numba_deform as nd
from numba_deform.engines.cpu import SimFault

LONGEST, NOT_RUN, TILES, BYTES = 40, 7, 64, 128
ACQUIRE, ISSUE, WAIT, OTHER, READ, RELEASE = range(6)
STEPS = {"producer": (ACQUIRE, ISSUE), "consumer": (WAIT, READ, RELEASE)}

# The first lanes of warps take turns, as in test_playground.py: a row says who, what, where the barrier and the
# stage lie, the parity, and the tile. full[i] lies at 16 i, empty[i] behind it. A copy lands at once.
KERNEL = """.version 9.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u32 p3, .param .u32 p4,
    .param .u32 p5, .param .u64 p6)
{
.reg .b32 i, n, t, me, who, what, x, b, f, e, c, r, s, d;
.reg .b64 table, out, turn, at, z, data; .reg .pred p, q;
.shared .align 16 .b8 bars[64];
.shared .align 128 .b8 tiles[512];
ld.param.u64 table, [p0]; ld.param.u64 out, [p1]; ld.param.u64 turn, [p2];
ld.param.u32 n, [p3]; ld.param.u32 c, [p4]; ld.param.u32 s, [p5]; ld.param.u64 data, [p6];
mov.u32 t, %tid.x;
shr.u32 me, t, 5;
setp.ne.u32 p, t, 0;
@p bra meet;
mov.u32 i, 0;
init:
shl.b32 x, i, 4;
mov.u32 b, bars;
add.u32 f, b, x;
mbarrier.init.shared::cta.b64 [f], 1;
add.u32 e, f, 8;
mbarrier.init.shared::cta.b64 [e], c;
add.u32 i, i, 1;
setp.lt.u32 p, i, s;
@p bra init;
fence.mbarrier_init.release.cluster;
meet:
bar.sync 0;
and.b32 x, t, 31;
setp.ne.u32 p, x, 0;
@p bra end;
mov.u32 i, 0;
next:
setp.ge.u32 p, i, n;
@p bra end;
mad.wide.u32 at, i, 24, table;
ld.global.u32 who, [at]; ld.global.u32 what, [at+4];
""" + ITS_TURN + """ld.global.u32 x, [at+8];
mov.u32 b, bars;
add.u32 b, b, x;
ld.global.u32 x, [at+12];
mov.u32 d, tiles;
add.u32 d, d, x;
ld.global.u32 x, [at+16];
setp.eq.u32 p, what, 1; @p bra issue;
setp.eq.u32 p, what, 4; @p bra read;
setp.eq.u32 p, what, 5; @p bra release;
""" + A_LOOK + """issue:
mbarrier.arrive.expect_tx.shared::cta.b64 z, [b], 128;
ld.global.u32 x, [at+20];
mad.wide.u32 z, x, 128, data;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [d], [z], 128, [b];
bra done;
read: ld.shared.u32 r, [d]; bra done;
release: fence.proxy.async.shared::cta;
mbarrier.arrive.shared::cta.b64 z, [b];
""" + NEXT

# The same in the page: [looks, how many clicks were done, the kind of fault or ""]
TWIN = """
document.body.innerHTML = '<script id="play-rules" type="application/json">{}</' + 'script>';
return arguments[0].map(([stages, consumers, clicks]) => {
    const game = Object.assign(new RingGame(document.createElement("div")), {stages, consumers}), looks = [];
    let done = 0;
    game.start();
    const steps = [
        () => looks.push(Number(game.acquire().includes("goes on"))), () => { game.issue(); game.land(); },
        who => looks.push(Number(game.wait(who, 0).includes("goes on"))),
        who => looks.push(Number(game.wait(who, 1).includes("goes on"))), who => game.read(who),
        who => game.release(who),
    ];
    try {
        for (const [who, what] of clicks) { steps[what](who); done += 1; }
    } catch (fault) {
        if (!(fault instanceof Fault)) throw fault;
        return [looks, done, fault.kind];
    }
    return [looks, done, ""];
});
"""


def sequence(number):
    """(stages, consumers, [(thread, operation)]): mostly what is allowed."""
    pick = random.Random(number)
    stages, consumers = pick.choice((1, 1, 2, 3, 4)), pick.choice((1, 2))
    place, clicks = [0] * (1 + consumers), []
    careful = pick.choice((0.8, 0.9, 0.95, 0.98, 1))
    while len(clicks) < LONGEST:
        who = pick.randrange(1 + consumers)
        steps = STEPS["consumer" if who else "producer"]
        right = pick.random() < careful
        if right and who and place[who] // 3 >= place[0] // 2:
            continue  # its tile has not come yet
        if right and not who and place[0] // 2 >= min(place[1:]) // 3 + stages:
            continue  # no stage is free
        what = steps[place[who] % len(steps)] if right else pick.choice((*steps, OTHER) if who else steps)
        place[who] += right
        clicks.append((who, what))
    return stages, consumers, clicks


def table(stages, clicks):
    """The rows of the kernel's table: what each click means depends on how often its thread has gone on."""
    uses, rows = {}, []
    for who, what in clicks:
        tile = uses.get(who, 0)
        stage, lap = tile % stages, tile // stages
        bar = 16 * stage + (8 if what in (ACQUIRE, RELEASE) else 0)
        parity = lap & 1 ^ (what in (ACQUIRE, OTHER))
        rows.append((who, what, bar, BYTES * stage, parity, tile))
        uses[who] = tile + (what in (ISSUE, RELEASE))
    return np.array(rows, np.uint32)


def engine(kernel, stages, consumers, clicks):
    """What the engine says of it, as TWIN returns it."""
    out, turn, kind = np.full(LONGEST, NOT_RUN, np.uint32), np.zeros(1, np.uint32), ""
    args = [table(stages, clicks), out, turn, len(clicks), consumers, stages, np.zeros(TILES * BYTES, np.uint8)]
    try:
        nd.simulate(kernel, 1, 32 * (1 + consumers), args, landing="earliest")
    except SimFault as fault:
        kind = type(fault).__name__
    kind = "" if kind == "CopyOutlivesBlock" else kind  # the clicks are over, and copies were not waited for
    return [[int(look) for look in out if look != NOT_RUN], int(turn[0]), kind]


@pytest.mark.full
def test_a_thousand_sequences():
    pytest.importorskip("selenium", reason="no selenium: pip install -e '.[test]'")
    kernel, sequences = nd.from_ptx(KERNEL)["k"], [sequence(number) for number in range(1000)]
    scripts = [(SITE / name).read_text() for name in ("barrier.js", "playground.js")]
    with lab.browser() as driver:
        driver.get("about:blank")
        twin = driver.execute_script("\n".join([*scripts, TWIN]), sequences)
    right = [engine(kernel, *each) for each in sequences]
    different = [(each, a, b) for each, a, b in zip(sequences, right, twin, strict=True) if a != b]
    assert different == []
    assert {kind for *_, kind in right} >= {
        "", "TooManyArrivals", "UnobservedPhase", "UninitialisedRead", "InFlightRead", "FreshBarrierPassed",
        "ReadAfterRelease", "StaleRefill",
    }  # fmt: skip
