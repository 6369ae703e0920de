// The engine's mbarrier (engines/cpu/async_units/mbarrier.py) once more, for a page: tests/browser/test_playground.py
// holds it to that one. Who knows what is kept as there, in vector clocks: an entry for each thread, and one for each
// barrier that says how many of its phases are over.
const MOST = (1 << 20) - 1;
const merge = (into, from) => from.forEach((clock, i) => { into[i] = Math.max(into[i] || 0, clock || 0); });

class Fault extends Error {
    constructor(kind, what, barrier) {
        super(what);
        Object.assign(this, {kind, what, state: barrier && `${barrier.name}: ${barrier.state()}`, own: true});
    }
}

class Machine {
    constructor(threads) {
        this.entries = threads;
        this.clocks = Array.from({length: threads}, (_, i) => Array.from({length: threads}, (_, j) => Number(i === j)));
    }
    tick(thread) { this.clocks[thread][thread] += 1; }
    named(threads) { // threads 0-1, 3
        const runs = [];
        for (const thread of threads) {
            if (runs.length && runs.at(-1)[1] === thread - 1) runs.at(-1)[1] = thread;
            else runs.push([thread, thread]);
        }
        return `thread${"s".repeat(threads.length !== 1)} ` + runs.map(([a, b]) => a === b ? a : `${a}-${b}`).join(", ");
    }
}

class Barrier {
    constructor(machine, name, count) {
        if (!(count >= 1 && count <= MOST)) throw new Fault("BadCount", `initialises ${name} for ${count} arrivals`);
        Object.assign(this, {machine, name, expected: count, pending: count, tx: 0, phase: 0});
        Object.assign(this, {gathered: [], released: [], entry: machine.entries++});
        // {thread: its clock at its arrival} in this phase, the one before, and that before it: null if copies
        // completed it as well
        Object.assign(this, {arrived: new Map(), last: new Map(), older: new Map(), copied: false, lastCopied: false});
        // {thread: what it arrived by last}, and {thread: what it arrived by at first and again} in these phases
        Object.assign(this, {by: new Map(), twice: new Map(), lastTwice: new Map()});
        this.alone = new Map(); // {thread: its clock} of bytes that were announced in this phase without an arrival
    }
    state() { return `phase ${this.phase}, pending ${this.pending} of ${this.expected}, tx-count ${this.tx}`; }
    over(thread) { return this.machine.clocks[thread][this.entry] || 0; }
    announce(thread, bytes) {
        if (!(bytes >= 0 && bytes <= MOST)) throw new Fault("BadCount", `expects ${bytes} bytes on ${this.name}`, this);
        this.addBytes(bytes);
    }
    expect(thread, bytes) { // with no arrival: the phase must not be over before
        const held = this.tx > 0; // by bytes that no copy brings yet
        this.announce(thread, bytes);
        if (this.over(thread) < this.phase) throw this.late(thread, this.phase - 1);
        if (!held) this.alone.set(thread, this.machine.clocks[thread][thread]);
        this.completeIfDone();
    }
    late(thread, phase) {
        const what = `announces bytes on ${this.name} with no arrival after it in that phase: phase ${phase} may be over ` +
            "before this, which then counts in the next";
        return Object.assign(new Fault("UnobservedPhase", what, this), {who: this.machine.named([thread])});
    }
    complete(bytes) {
        this.addBytes(-bytes);
        this.completeIfDone();
    }
    land(bytes, known) { // a copy, by one who knew that
        this.copied = true;
        merge(this.gathered, known);
        this.complete(bytes);
    }
    addBytes(bytes) {
        this.tx += bytes;
        if (Math.abs(this.tx) > MOST)
            throw new Fault("BadCount", `tx-count of ${this.name} becomes ${this.tx}, beyond +-${MOST}`, this);
    }
    arrive(thread, count = 1, by = "arrive") {
        if (!(count >= 1 && count <= MOST))
            throw new Fault("BadCount", `arrives ${count} times on ${this.name}`, this);
        if (this.over(thread) < this.phase) throw this.unobserved(thread, by);
        if (count > this.pending)
            throw this.tooMany(thread, this.phase, `arrives ${count}x on ${this.name} in phase ${this.phase}, where ` +
                `${this.pending} of ${this.expected} arrivals are left`, by);
        if (this.arrived.has(thread) && !this.twice.has(thread)) this.twice.set(thread, [this.by.get(thread), by]);
        this.by.set(thread, by);
        const clocks = this.machine.clocks[thread];
        merge(this.gathered, clocks);
        this.arrived.set(thread, clocks[thread]);
        this.machine.tick(thread);
        this.pending -= count;
        this.completeIfDone();
    }
    arriveExpect(thread, bytes) {
        this.announce(thread, bytes);
        this.completeIfDone();
        this.arrive(thread, 1, "arrive.expect_tx");
    }
    unobserved(thread, by) {
        const before = this.phase - 1, others = `${this.expected} expected arrival${this.expected > 1 ? "s were" : " was"}`;
        return this.tooMany(thread, before, this.last.has(thread)
            ? `arrives on ${this.name} in phase ${this.phase} without having waited for phase ${before}, directly or ` +
                "through another barrier"
            : `arrives on ${this.name}, whose phase ${before} is over without it: the ${others} made by others`, by);
    }
    tooMany(thread, phase, what, by) { // no arrival is left for it in that phase, or it has arrived before
        const now = phase === this.phase, arrived = now ? this.arrived : this.last;
        const twice = new Map(now ? this.twice : this.lastTwice), kind = now || twice.size || !arrived.has(thread)
            ? "TooManyArrivals" : "UnobservedPhase";
        if (arrived.has(thread)) twice.set(thread, [this.by.get(thread), by]);
        if (!twice.size) return new Fault(kind, what, this);
        const who = twice.has(thread) ? thread : Math.min(...twice.keys()), [first, second] = twice.get(who);
        const where = first === second ? `by ${first} both times` : `by ${first} and by ${second}`;
        const both = `${this.machine.named([...twice.keys()].sort())} arrived twice in phase ${phase} of ${this.name}, ${where}`;
        if (kind === "UnobservedPhase") return new Fault(kind, `${what}; its arrival in that was by ${first}`, this);
        const said = who === thread ? `${what}; ${both}` : `${both}; and ${this.machine.named([thread])} ${what}`;
        return Object.assign(new Fault(kind, said, this), {own: who === thread}); // else it says whose it is
    }
    lost(thread) {
        const seen = this.machine.clocks[thread];
        if (this.over(thread) >= this.phase - 1) return false;
        if (!this.older || [...this.older].some(([who, clock]) => (seen[who] || 0) < clock)) return true;
        seen[this.entry] = this.phase - 1;
        return false;
    }
    wait(thread, parity) { // one look: whether the phase of that parity is over
        if (parity !== 0 && parity !== 1)
            throw new Fault("BadCount", `waits on ${this.name} for parity ${parity}`, this);
        const known = this.over(thread);
        if (known < this.phase - 1 && this.lost(thread))
            throw new Fault("MissedPhase", `waits on ${this.name} for phase ${known}, the one after those it knows to ` +
                `be complete, but the barrier is in phase ${this.phase}, where a parity means another`, this);
        if ((this.phase & 1) === parity) return false;
        if (known < this.phase) merge(this.machine.clocks[thread], this.released);
        return true;
    }
    completeIfDone() {
        if (this.pending || this.tx > 0) return;
        if (this.tx < 0)
            throw new Fault("MoreBytesThanExpected", `${-this.tx} bytes more than expected have landed on ${this.name} ` +
                `in phase ${this.phase}, and all ${this.expected} arrivals are in`, this);
        for (const [thread, clock] of this.alone) if ((this.gathered[thread] || 0) < clock) throw this.late(thread, this.phase);
        this.alone.clear();
        this.phase += 1;
        this.pending = this.expected;
        this.older = this.lastCopied ? null : this.last;
        [this.last, this.arrived] = [this.arrived, new Map()];
        [this.lastTwice, this.twice] = [this.twice, new Map()];
        [this.lastCopied, this.copied] = [this.copied, false];
        [this.released, this.gathered] = [this.gathered, []];
        this.released[this.entry] = this.phase;
    }
}
