// Short questions answered in the page: see quiz.py, which makes the forms and asks the notebook's checks beforehand.
function hashed(text) { // FNV-1a
    let value = 0x811c9dc5;
    for (const byte of new TextEncoder().encode(text)) value = Math.imul(value ^ byte, 0x01000193) >>> 0;
    return value;
}

function uncovered(text, name) {
    let state = hashed(name) | 1;
    return new TextDecoder().decode(Uint8Array.from(atob(text), letter => {
        state ^= state << 13;
        state ^= state >>> 17;
        state ^= state << 5;
        return letter.charCodeAt(0) ^ (state & 0xff);
    }));
}

function element(tag, attributes = {}, ...inside) {
    const node = Object.assign(document.createElement(tag), attributes);
    node.append(...inside);
    return node;
}

function makeField(field, id) { // [what is shown, () => the answer as quiz.py has it, or null while there is none]
    const form = /^-?\d+$/, label = element("b", {}, field.name);
    if (field.kind === "one" || field.kind === "some") {
        const type = field.kind === "one" ? "radio" : "checkbox";
        const boxes = field.options.map(value => element("input", {type, value, name: id}));
        const labels = boxes.map(box => element("label", {}, box, ` ${box.value}`));
        const chosen = () => boxes.filter(box => box.checked).map(box => box.value).sort().join(",");
        return [element("fieldset", {}, element("legend", {}, label), ...labels), () => chosen() || null];
    }
    const input = element("input", {type: "text", autocomplete: "off", inputMode: field.kind === "number" ? "numeric" : ""});
    const read = () => {
        const parts = input.value.replace(/[()_\u2009]/g, "").split(/[,;\s]+/).filter(part => part);
        const count = field.kind === "number" ? 1 : 3;
        return parts.length === count && parts.every(part => form.test(part)) ? parts.map(Number).join(",") : null;
    };
    return [element("label", {}, label, " ", input), read];
}

function words(text) { // `code` within it
    return text.split("`").map((part, i) => i % 2 ? element("code", {}, part) : part);
}

function makeQuiz(root, number) {
    const {name, texts, fields} = JSON.parse(root.dataset.quiz), verdict = element("p", {className: "quiz-verdict"});
    verdict.setAttribute("role", "status");
    const made = fields.map((field, i) => makeField(field, `quiz-${number}-${i}`));
    const tell = (kind, title, text) => {
        verdict.dataset.kind = kind;
        verdict.replaceChildren(element("b", {}, title), " ", ...words(text));
    };
    const form = element("form", {}, element("div", {className: "quiz-title"}, "Answer here"),
        ...made.map(([shown]) => shown), element("button", {type: "submit"}, "Check"), verdict);
    form.addEventListener("submit", event => {
        event.preventDefault();
        let last = "";
        for (const [place, field] of fields.entries()) {
            const given = made[place][1](), said = of => field.said[hashed(`${name}|${place}|${of}`)];
            if (given === null) {
                const wanted = {number: "a whole number", numbers: "three whole numbers, like 0, 2, 128"}[field.kind];
                return tell("hole", "Still to answer.", `${field.name}: ${wanted ?? "choose"}.`);
            }
            const [right, text] = said(given) ?? said("*");
            last = uncovered(texts[text], name).replaceAll("{given}", given);
            if (!right) return tell("wrong", "Not yet.", last);
        }
        tell("right", "Right.", last);
    });
    root.replaceChildren(form);
}
document.addEventListener("DOMContentLoaded", () => document.querySelectorAll(".quiz").forEach(makeQuiz));
