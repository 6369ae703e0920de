// The first page: a ring of stages that turns, and what happens without one of its lines. The reports are the CPU
// engine's, of planted faults that lack that line; the movement is drawn here.
const FLIGHT = 2300, WORK = 1150, ISSUE = 380, LATE = 420, REST = 1200; // ms
const STAGES = 3, WIDE = 86; // of the drawing

const LINES = [ // [who, code, the key by which it may be dropped]
    ["producer", "acquire(stage)", "acquire"], ["producer", "issue(copy)", ""],
    ["consumer", "wait(stage)", "wait"], ["consumer", "add up", ""], ["consumer", "fence()", "fence"],
    ["consumer", "release(stage)", ""],
];

function place(stage, radius) {
    const angle = (stage / STAGES - 0.25) * 2 * Math.PI;
    return [160 + radius * Math.cos(angle), 150 + radius * Math.sin(angle)];
}

function drawing() {
    const stages = [...Array(STAGES).keys()].map(s => {
        const [x, y] = place(s, 92);
        return `<g data-stage="${s}" transform="translate(${x - WIDE / 2} ${y - 23})">
            <rect class="box" width="${WIDE}" height="46" rx="6"/><rect class="fill" height="46" rx="6"/>
            <text x="${WIDE / 2}" y="19">stage ${s}</text><text class="state" x="${WIDE / 2}" y="37"></text></g>`;
    });
    return `<svg viewBox="6 -14 308 262" role="img" aria-label="Three stages in a ring: a producer fills them, a
        consumer follows and empties them"><circle cx="160" cy="150" r="92"/>${stages.join("")}
        <g class="hand produces"><path d="M160 4 l-9 -14 h18 z"/></g>
        <g class="hand consumes"><path d="M160 112 l-9 14 h18 z"/></g>
        <text x="160" y="148">tile</text><text class="count" x="160" y="170">0</text></svg>`;
}

class TurningRing {
    constructor(box, reports) {
        this.box = box;
        this.reports = reports;
        const column = who => `<div><b>${who}</b>${LINES.map(([whose, code, key], i) => whose !== who ? "" : key
            ? `<button data-line="${i}" data-drop="${key}" aria-pressed="false"
                title="drop this line">${code}<span>drop</span></button>`
            : `<code data-line="${i}">${code}</code>`).join("")}</div>`;
        box.innerHTML = `<div class="ring-row"><div class="ring-picture">${drawing()}</div><div class="ring-code">
            ${column("producer")}${column("consumer")}<button data-do="pause">Pause</button></div></div>
            <div class="ring-report" aria-live="polite"></div>`;
        box.querySelectorAll("[data-drop]").forEach(button => button.addEventListener("click", () =>
            this.drop(button.dataset.drop === this.dropped ? "" : button.dataset.drop)));
        this.pause = box.querySelector("[data-do=pause]");
        this.pause.addEventListener("click", () => this.run(!this.running));
        this.drop("");
        this.run(!matchMedia("(prefers-reduced-motion: reduce)").matches);
    }

    drop(key) { // start again, without that line
        Object.assign(this, { dropped: key, now: 0, asked: 0, taken: 0, free: 0, busy: 0, fault: "", line: {} });
        this.stages = [...Array(STAGES)].map(() => ({ state: "empty", since: 0 }));
        this.box.querySelectorAll("[data-drop]").forEach(button => {
            button.setAttribute("aria-pressed", button.dataset.drop === key);
            button.querySelector("span").textContent = button.dataset.drop === key ? "put back" : "drop";
        });
        this.box.querySelector(".ring-report").textContent = "";
        if (key) this.run(true);
        this.draw();
    }

    run(on) {
        const before = this.running;
        this.running = on;
        this.pause.textContent = on ? "Pause" : "Play";
        if (!on || before) return;
        let last = performance.now();
        const frame = time => {
            if (!this.running) return;
            this.step(Math.min(time - last, 100));
            last = time;
            this.draw();
            requestAnimationFrame(frame);
        };
        requestAnimationFrame(frame);
    }

    step(passed) {
        if (this.fault) return;
        this.now += passed;
        const { now, dropped, stages } = this;
        for (const stage of stages)
            if (stage.state === "flight" && now - stage.since > FLIGHT) stage.state = "full";
        this.produce(now, stages[this.asked % STAGES]);
        if (!this.fault) this.consume(now, stages[this.taken % STAGES], dropped);
    }

    produce(now, stage) {
        if (now < this.free) return;
        const late = stage.late > now; // the consumer's last words are under way
        if (stage.state !== "empty" && this.dropped !== "acquire") return void (this.line.producer = 0);
        if (stage.state !== "empty" || late) return this.stop(late ? "fence" : "acquire", stage);
        Object.assign(stage, { state: "flight", since: now });
        this.line.producer = 1;
        this.free = now + ISSUE;
        this.asked += 1;
    }

    consume(now, stage, dropped) {
        if (stage.state === "read") {
            this.line.consumer = now - stage.since < WORK - LATE ? 3 : dropped === "fence" ? 5 : 4;
            const gives = dropped === "fence" ? WORK - LATE : WORK;
            if (now - stage.since < gives) return;
            Object.assign(stage, { state: "empty", late: dropped === "fence" ? now + LATE : 0 });
            this.line.consumer = 5;
            this.taken += 1;
        } else if (stage.state === "full") {
            Object.assign(stage, { state: "read", since: now });
        } else if (dropped === "wait" && now > REST) {
            this.stop("wait", stage);
        } else {
            this.line.consumer = 2;
        }
    }

    stop(key, stage) {
        this.fault = key;
        stage.wrong = true;
        const told = this.reports[key], report = this.box.querySelector(".ring-report");
        report.innerHTML = "<p><b></b> <span></span></p><pre></pre>";
        report.querySelector("b").textContent = told.what;
        report.querySelector("span").textContent = "What the CPU engine says of such a kernel, without a GPU:";
        report.querySelector("pre").textContent = told.report;
    }

    draw() {
        const words = { empty: "free", flight: "on its way", full: "full", read: "is read" };
        this.stages.forEach((stage, s) => {
            const group = this.box.querySelector(`[data-stage="${s}"]`);
            group.setAttribute("class", stage.wrong ? "wrong" : stage.state);
            const share = stage.state === "flight" ? Math.min(1, (this.now - stage.since) / FLIGHT) : 1;
            group.querySelector(".fill").setAttribute("width", stage.state === "empty" ? 0 : WIDE * share);
            group.querySelector(".state").textContent = stage.wrong ? "wrong data" : words[stage.state];
        });
        const turn = (hand, count) => {
            this.box.querySelector(`.${hand}`).style.transform = `rotate(${count * 360 / STAGES}deg)`;
        };
        turn("produces", this.asked);
        turn("consumes", this.taken);
        this.box.querySelector(".count").textContent = this.taken;
        this.box.querySelectorAll("[data-line]").forEach(line =>
            line.classList.toggle("now", !this.fault && Object.values(this.line).includes(Number(line.dataset.line))));
    }
}

document.addEventListener("DOMContentLoaded", () => {
    const box = document.getElementById("ring");
    if (box) box.ring = new TurningRing(box, JSON.parse(document.getElementById("ring-reports").textContent));
});
