// The playground: one mbarrier, and a ring of stages, played by clicking. The rules of barriers are those of barrier.js,
// those of stages the engine's (engines/cpu/memory/access_faults.py): tests/browser/test_playground_ring.py holds them to
// that. What faults say beside is the engine's, which the page brings along.
const make = (tag, attributes = {}, ...inside) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...inside);
    return node;
};

class Table { // what both games have: buttons, what has happened, a fault that ends it
    constructor(root) {
        this.root = root;
        this.rules = JSON.parse(document.querySelector("#play-rules").textContent);
    }
    begin(...inside) {
        this.view = make("div", {class: "play-view"});
        this.said = make("ol", {class: "play-said", "aria-live": "polite"});
        this.fault = make("div", {class: "play-fault", role: "alert"});
        const [first, ...rows] = inside;
        this.root.replaceChildren(first, this.view, ...rows, this.fault, this.said);
        this.draw();
    }
    choice(name, values, now) {
        const box = make("select", {"data-choice": name}, ...values.map(value => make("option", {}, String(value))));
        box.value = String(now);
        box.addEventListener("change", () => { this[name] = Number(box.value); this.start(); });
        return make("label", {}, `${name}: `, box);
    }
    again() {
        const button = make("button", {type: "button", "data-do": "again"}, "start again");
        button.addEventListener("click", () => this.start());
        return button;
    }
    row(title, ...buttons) { return make("div", {class: "play-row"}, make("b", {}, title), ...buttons); }
    button(key, text, who, action) { // action() returns what has happened, in words
        const button = make("button", {type: "button", "data-do": key}, text);
        button.addEventListener("click", () => {
            try {
                this.say(`${who}: ${action()}`);
            } catch (fault) {
                if (!(fault instanceof Fault)) throw fault;
                this.end(who, fault);
            }
            this.draw();
        });
        return button;
    }
    say(text) {
        this.said.append(make("li", {}, text));
        this.said.scrollTop = this.said.scrollHeight;
    }
    end(who, fault) {
        const rule = this.rules[fault.kind];
        this.fault.replaceChildren(
            make("b", {}, fault.kind), `: ${fault.own ? `${fault.who ?? who} ` : ""}${fault.message}.`,
            ...[["state", fault.state], ["rule", rule.rule], ["cure", rule.cure]].filter(([, text]) => text)
                .map(([name, text]) => make("div", {}, make("i", {}, `${name} `), text)));
        for (const button of this.root.querySelectorAll("button:not([data-do=again])")) button.disabled = true;
    }
}

function barrierCard(barrier) {
    const parity = barrier.phase & 1, come = barrier.expected - barrier.pending;
    return make("div", {class: `play-barrier parity-${parity}`, "data-barrier": barrier.name},
        make("b", {}, barrier.name), make("span", {class: "play-phase"}, `phase ${barrier.phase} (parity ${parity})`),
        make("span", {"aria-hidden": "true"}, "\u25cf".repeat(come) + "\u25cb".repeat(barrier.pending)),
        make("span", {}, `pending ${barrier.pending} of ${barrier.expected}`),
        make("span", {}, `tx-count ${barrier.tx}`));
}

class OneBarrier extends Table {
    arrivals = 2;
    start() {
        this.barrier = new Barrier(new Machine(3), "bar", this.arrivals);
        this.drawn = 0;
        this.rows = [0, 1, 2].map(thread => {
            const name = `thread ${thread}`, bar = this.barrier;
            const look = parity => () => bar.wait(thread, parity)
                ? `waits for parity ${parity}, and goes on: phase ${bar.phase - 1} is over`
                : `waits for parity ${parity}: phase ${bar.phase} is not over, it has to look again`;
            const doing = (key, text, action) => this.button(`${key}-${thread}`, text, name, action);
            return this.row(name,
                doing("arrive", "arrive", () => (bar.arrive(thread), "arrives")),
                doing("expect", "expect_tx 128", () => (bar.expect(thread, 128), "expects 128 bytes")),
                doing("both", "arrive.expect_tx 128",
                    () => (bar.arriveExpect(thread, 128), "expects 128 bytes and arrives")),
                doing("wait0", "wait, parity 0", look(0)), doing("wait1", "wait, parity 1", look(1)));
        });
        this.rows.push(this.row("copy engine", this.button("complete", "complete_tx 128", "copy engine",
            () => (this.barrier.complete(128), "128 bytes have landed"))));
        this.begin(this.row("mbarrier.init", this.choice("arrivals", [1, 2, 3], this.arrivals), this.again()), ...this.rows);
        this.say(`init for ${this.arrivals} arrival${"s".repeat(this.arrivals > 1)}: ${this.barrier.state()}`);
    }
    draw() {
        const over = this.barrier.phase > this.drawn;
        this.drawn = this.barrier.phase;
        if (over) this.say(`phase ${this.drawn - 1} is over; ${this.barrier.state()}`);
        this.view.replaceChildren(barrierCard(this.barrier));
    }
}

class RingGame extends Table {
    stages = 2;
    consumers = 2;
    start() {
        const machine = new Machine(1 + this.consumers), each = [...Array(this.stages).keys()];
        machine.named = threads => threads.map(thread => thread ? `consumer ${thread}` : "producer").join(" and ");
        this.machine = machine;
        this.full = each.map(i => new Barrier(machine, `full[${i}]`, 1));
        this.empty = each.map(i => new Barrier(machine, `empty[${i}]`, this.consumers));
        this.slots = each.map(() => ({tile: null, copy: null, flies: false, readers: []}));
        this.use = Array(1 + this.consumers).fill(0);
        // the last waits that went on: each thread's on each full barrier, and the producer's {bar, phase} on an empty one
        this.passed = Array.from({length: 1 + this.consumers}, () => new Map());
        this.acquired = null;
        const rows = [this.row("producer",
            this.button("acquire", "acquire", "producer", () => this.acquire()),
            this.button("issue", "expect and issue", "producer", () => this.issue()))];
        rows.push(this.row("copy engine", this.button("land", "oldest copy lands", "copy engine", () => this.land())));
        for (let c = 1; c <= this.consumers; c++) {
            const name = `consumer ${c}`;
            rows.push(this.row(name,
                this.button(`wait-${c}`, "wait", name, () => this.wait(c, 0)),
                this.button(`other-${c}`, "wait, wrong parity", name, () => this.wait(c, 1)),
                this.button(`read-${c}`, "read", name, () => this.read(c)),
                this.button(`release-${c}`, "release", name, () => this.release(c))));
        }
        this.begin(this.row("ring", this.choice("stages", [1, 2, 3, 4], this.stages),
            this.choice("consumers", [1, 2], this.consumers), this.again()), ...rows);
        this.say("all stages are free");
    }
    place(who) { // {tile, stage, lap} of its next use
        const tile = this.use[who];
        return {tile, stage: tile % this.stages, lap: Math.floor(tile / this.stages)};
    }
    acquire() {
        const {stage, lap} = this.place(0), parity = (lap & 1) ^ 1;
        const look = `waits on empty[${stage}], parity ${parity}`;
        if (!this.empty[stage].wait(0, parity)) return `${look}: it is not free yet, it has to look again`;
        this.acquired = {bar: this.empty[stage], phase: this.empty[stage].phase - 1};
        return `${look}, and goes on: stage ${stage} is free`;
    }
    givesBack(copy, who, bar) { // whether it has released the stage since its last wait there, and the producer knew
        const waited = this.passed[who].get(bar);
        return waited && (copy.givers.get(who) ?? -1) >= waited.clock;
    }
    waitedAgain(copy, who, bar) { // whether its last wait there returned for a phase that it had released before
        const {clock, first} = this.passed[who].get(bar) ?? {clock: 0, first: 0}, gave = copy.givers.get(who) ?? -1;
        return first <= gave && gave < clock;
    }
    refill({last}, who) { // the kind of fault of a copy into a stage that this thread still reads
        if (!last || !(last.bar.arrived.has(who) || last.bar.last.has(who) || last.bar.pending < last.bar.expected))
            return "RefillRace";
        const absent = last.phase >= 0 && last.phase === last.bar.phase - 1 && !last.bar.last.has(who);
        return !absent ? "StaleRefill" : last.bar.lastTwice.size ? "TooManyArrivals" : "RefillRace";
    }
    issue() {
        const {tile, stage} = this.place(0);
        this.full[stage].arriveExpect(0, 128);
        const seen = this.machine.clocks[0], last = this.acquired;
        const copy = {known: [...seen], last, givers: last && last.phase === last.bar.phase - 1 ? last.bar.last : new Map()};
        const [reader] = this.slots[stage].readers.find(([c, at]) => (seen[c] || 0) < at) ?? [];
        if (reader && this.waitedAgain(copy, reader, this.full[stage]))
            throw new Fault("StaleWait", `asks for tile ${tile} into stage ${stage}, which consumer ${reader} has read ` +
                `after a wait that returned for the phase of a tile that it had released`, this.full[stage]);
        if (reader && this.givesBack(copy, reader, this.full[stage]))
            throw new Fault("ReadAfterRelease", `asks for tile ${tile} into stage ${stage}, which consumer ${reader} has ` +
                `read after its release`, this.empty[stage]);
        if (reader)
            throw new Fault(this.refill(copy, reader), `asks for tile ${tile} into stage ${stage}, which consumer ` +
                `${reader} may still be reading`, this.empty[stage]);
        this.slots[stage] = {tile, copy, flies: true, readers: []};
        this.use[0] += 1;
        return `expects 128 bytes on full[${stage}], and asks for tile ${tile}`;
    }
    land() {
        const flying = this.slots.filter(slot => slot.flies).sort((a, b) => a.tile - b.tile);
        if (!flying.length) return "nothing is on its way";
        const [slot] = flying, stage = this.slots.indexOf(slot);
        slot.flies = false;
        this.full[stage].land(128, slot.copy.known);
        return `tile ${slot.tile} has landed in stage ${stage}`;
    }
    look(who, stage, parity) {
        const bar = this.full[stage], over = bar.over(who), {tile, copy} = this.slots[stage];
        try {
            return bar.wait(who, parity);
        } catch (fault) { // a phase that it has missed: the copies of a later one have replaced its tile
            if (fault.kind !== "MissedPhase" || Math.floor(tile / this.stages) <= over) throw fault;
            throw new Fault(this.refill(copy, who), `waits on ${bar.name} for phase ${over}, whose tile has been ` +
                `replaced by tile ${tile}: nothing said that the read of it is over`, bar);
        }
    }
    wait(who, wrong) {
        const {tile, stage, lap} = this.place(who), parity = (lap & 1) ^ wrong;
        const look = `waits on full[${stage}], parity ${parity}`;
        if (!this.look(who, stage, parity)) return `${look}: tile ${tile} is not there yet, it has to look again`;
        const bar = this.full[stage], before = this.passed[who].get(bar), phase = bar.phase - 1;
        const clock = this.machine.clocks[who][who], first = before?.phase === phase ? before.first : clock;
        this.passed[who].set(bar, {phase, clock, first});
        return `${look}, and goes on`;
    }
    read(who) {
        const {tile, stage} = this.place(who), slot = this.slots[stage], bar = this.full[stage];
        if (slot.tile === null)
            throw new Fault("UninitialisedRead", `reads stage ${stage}, which nothing has been written to`, bar);
        if (bar.over(who) <= Math.floor(slot.tile / this.stages)) {
            throw new Fault(this.unawaited(who, slot, bar), `reads stage ${stage}: ` + (slot.flies
                ? `the copy of tile ${slot.tile} is still in flight, and it has not waited for it`
                : `tile ${slot.tile} has landed there, and it has not waited for it`), bar);
        }
        slot.readers.push([who, this.machine.clocks[who][who]]);
        return `reads tile ${slot.tile} in stage ${stage}` + (slot.tile === tile ? ""
            : `, and wanted tile ${tile}: no rule is broken, but the numbers are wrong`);
    }
    unawaited(who, {copy}, bar) { // the kind of fault of a read that no wait for this copy allows
        const waited = this.passed[who].get(bar), known = this.machine.clocks[who];
        if (!waited)
            return bar.over(who) > 0 && (known[0] || 0) < copy.known[0] ? this.refill(copy, who) : "InFlightRead";
        if (waited.phase < 0) return "FreshBarrierPassed";
        if ((copy.known[who] || 0) < waited.first) return this.refill(copy, who);
        return this.givesBack(copy, who, bar) ? "ReadAfterRelease" : "StaleWait";
    }
    release(who) {
        const {tile, stage} = this.place(who);
        this.empty[stage].arrive(who);
        this.use[who] += 1;
        return `is done with tile ${tile}, and arrives on empty[${stage}]`;
    }
    draw() {
        this.view.replaceChildren(...this.slots.map((slot, i) => {
            const busy = slot.tile !== null && this.empty[i].phase <= Math.floor(slot.tile / this.stages);
            const doing = slot.flies ? "asked for" : busy ? "full" : "free";
            const text = slot.tile === null || doing === "free" ? doing : `tile ${slot.tile}, ${doing}`;
            return make("div", {class: `play-stage ${doing.replace(" ", "-")}`, "data-stage": i},
                make("b", {}, `stage ${i}`), make("span", {}, text), barrierCard(this.full[i]), barrierCard(this.empty[i]));
        }));
    }
}

document.addEventListener("DOMContentLoaded", () => {
    for (const root of document.querySelectorAll("#play-barrier")) new OneBarrier(root).start();
    for (const root of document.querySelectorAll("#play-ring")) new RingGame(root).start();
});
