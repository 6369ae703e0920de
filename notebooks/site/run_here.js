// A lesson whose cells run in the page: in_browser/worker.js has Python, and here each cell becomes a text to edit with a button.
// What a cell runs needs the cells before it: those that have not run yet run first.
class LivePage {
    constructor(button) {
        this.button = button;
        this.say = document.createElement("span");
        this.say.setAttribute("aria-live", "polite");
        button.after(this.say);
        button.addEventListener("click", () => this.begin());
    }

    begin() {
        if (typeof WebAssembly.Suspending !== "function" || location.protocol === "file:") {
            this.say.textContent = location.protocol === "file:"
                ? "A page that was opened as a file may not load Python. Serve the site: python -m http.server"
                : "This browser lacks JavaScript Promise Integration. Chrome and Edge have it from 137 on.";
            return;
        }
        this.button.disabled = true;
        this.cells ??= [...document.querySelectorAll("article .cell")].filter(cell => cell.querySelector(".cell_input"))
            .map((cell, number) => this.live(cell, number));
        for (const cell of this.cells) cell.ran = false;
        const root = new URL(`${document.documentElement.dataset.content_root}in_browser/`, location.href), pyodide = new URL(this.button.dataset.pyodide, location.href);
        const from = pyodide.origin === location.origin ? "" : ` from ${pyodide.host}`;
        this.worker = new Worker(new URL("worker.js", root), {type: "module"});
        this.worker.onmessage = ({data}) => this.hear(data, from);
        this.worker.onerror = event => this.stop(`Python did not start: ${event.message}`);
        this.worker.postMessage({pyodide: pyodide.href, files: new URL("files.zip", root).href});
    }

    live(cell, number) {
        const code = cell.querySelector(".cell_input pre"), text = document.createElement("textarea");
        text.value = code.textContent.replace(/\n$/, "");
        text.rows = text.value.split("\n").length;
        text.spellcheck = false;
        text.setAttribute("aria-label", `cell ${number + 1}`);
        text.addEventListener("input", () => { text.rows = text.value.split("\n").length; });
        const run = document.createElement("button");
        run.type = "button";
        run.textContent = "Run";
        run.className = "run-cell";
        run.addEventListener("click", () => this.run(number));
        text.addEventListener("keydown", event => {
            if (event.key === "Enter" && event.shiftKey) { event.preventDefault(); this.run(number); }
        });
        code.closest(".highlight").replaceChildren(text);
        cell.querySelector(".cell_input").append(run);
        const out = document.createElement("div");
        out.className = "run-output";
        out.setAttribute("aria-live", "polite");
        (cell.querySelector(".cell_output") ?? cell).after(out);
        return {cell, text, run, out, ran: false};
    }

    run(number) {
        if (!this.worker) this.begin();
        this.cells.forEach((cell, i) => {
            if (i > number || cell.ran && i < number) return;
            cell.ran = true;
            cell.out.replaceChildren();
            cell.out.dataset.state = "runs";
            this.worker.postMessage({source: cell.text.value, number: i});
        });
        this.button.textContent = "Stop";
        this.button.disabled = false;
        this.button.onclick = event => { event.stopImmediatePropagation(); this.stop("Stopped; what ran is forgotten."); };
    }

    stop(why) {
        this.worker.terminate();
        this.worker = null;
        for (const cell of this.cells) { cell.ran = false; delete cell.out.dataset.state; }
        Object.assign(this.button, {textContent: "Run in this page", disabled: false, onclick: null});
        this.say.textContent = why;
    }

    hear(data, from) {
        const cell = this.cells[data.number];
        if (data.state === "loading") this.say.textContent = `Loading ${data.what}${from} ...`;
        else if (data.state === "failed") this.stop(`Python did not start: ${data.what.trim().split("\n").at(-1)}`);
        else if (data.state === "ready") {
            this.say.textContent = `Python runs here since ${data.seconds.toFixed(0)} s. Kernels are interpreted, thread by thread.`;
            this.button.textContent = "Python is ready";
            document.body.dataset.python = "ready";
        } else if (data.state === "ran") {
            cell.cell.querySelector(".cell_output")?.remove(); // of the site's build
            cell.out.dataset.state = data.well ? "well" : "wrong";
        } else if (cell) {
            const shown = document.createElement(data.show === "html" ? "div" : "pre");
            if (data.show === "html") shown.innerHTML = data.text;
            else shown.textContent = data.text;
            cell.out.append(shown);
        }
    }
}

document.addEventListener("DOMContentLoaded", () => {
    const button = document.querySelector("button.run-here");
    if (button) button.live = new LivePage(button);
});
