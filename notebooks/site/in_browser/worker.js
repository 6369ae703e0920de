// Python beside the page, which stays alive meanwhile. Messages in: {pyodide, files} to begin, then {source, number} of a
// cell. Out: {state: "loading", what}, {state: "ready", seconds}, {show: kind, text, number}, {state: "ran", number, well, seconds}.
let cell = null;
const since = start => (performance.now() - start) / 1000;
const show = (kind, text) => postMessage({show: kind, text, number: cell});

// Pointers to functions that NumPy takes its memory by: malloc, calloc, realloc. It begins at multiples of 16, as TMA wants it.
function allocators({_module: m}) {
    const malloc = (_, size) => m._memalign(16, size);
    const calloc = (_, count, each) => {
        const place = malloc(0, count * each);
        if (place) m.HEAPU8.fill(0, place, place + count * each);
        return place;
    };
    const realloc = (_, old, size) => {
        const moved = m._realloc(old, size), place = moved & 15 ? malloc(0, size) : moved;
        if (place !== moved && place) m.HEAPU8.copyWithin(place, moved, moved + size);
        if (place !== moved) m._free(moved);
        return place;
    };
    return [[malloc, "iii"], [calloc, "iiii"], [realloc, "iiii"]].map(each => m.addFunction(...each));
}

async function begin({pyodide, files}) {
    const start = performance.now(), loading = what => postMessage({state: "loading", what});
    loading("Python");
    const {loadPyodide} = await import(`${pyodide}pyodide.mjs`);
    const python = await loadPyodide({
        indexURL: pyodide, stdout: text => show("text", text), stderr: text => show("text", text),
        env: {HOME: "/home/pyodide", NUMBA_DEFORM_ENGINE: "cpu"},
    });
    loading("NumPy and matplotlib");
    await python.loadPackage(["numpy", "matplotlib"], {messageCallback: () => {}});
    loading("the engine");
    python.unpackArchive(await (await fetch(files)).arrayBuffer(), "zip", {extractDir: "/package"});
    python.FS.chdir("/package");
    python.globals.set("show", show);
    python.globals.set("allocators", python.toPy(allocators(python)));
    await python.runPythonAsync(`
        import sys; sys.path.insert(0, "/package")
        import boot
        boot.align_arrays(allocators)
        boot.begin()
        shell = boot.Shell(show)`);
    postMessage({state: "ready", seconds: since(start)});
    return python;
}

async function run({source, number}) {
    const start = performance.now(), {globals} = python;
    cell = number;
    globals.set("source", source);
    globals.set("number", number);
    const well = await python.runPythonAsync("shell.run(source, number + 1)");
    postMessage({state: "ran", number, well, seconds: since(start)});
}

let python = null, turn = Promise.resolve(); // one after another
onmessage = ({data}) => {
    turn = turn.then(async () => { if (data.files) python = await begin(data); else await run(data); })
        .catch(error => { postMessage({state: "failed", what: String(error.message ?? error)}); });
};
