// Sliders over pictures that were drawn beforehand: see course/lessons/frames.py. Without this the first is shown.
const SMALLEST = 0.7;

function keepReadable(svg) { // it shrinks on a phone, as far as its words are read
    svg.style.minWidth = `${SMALLEST * parseFloat(svg.getAttribute("width"))}pt`;
}

function makeSliders(box) {
    const data = JSON.parse(box.querySelector("script").textContent);
    const picture = box.querySelector(".frames-picture"), sliders = [];
    const sizes = data.values.map(options => options.length);
    const show = () => {
        const frame = sliders.reduce((sum, slider, i) => sum * sizes[i] + Number(slider.value), 0);
        picture.innerHTML = data.frames[frame].map(line => data.lines[line]).join("\n");
        keepReadable(picture.querySelector("svg"));
        picture.setAttribute("aria-label", data.alts[frame]);
        box.dataset.frame = frame;
    };
    let rest = data.first;
    const first = sizes.map((_, i) => {
        const below = sizes.slice(i + 1).reduce((a, b) => a * b, 1), place = Math.floor(rest / below);
        rest %= below;
        return place;
    });
    const panel = document.createElement("div");
    panel.className = "frames-sliders";
    data.names.forEach((name, i) => {
        const label = document.createElement("label"), value = document.createElement("output");
        const slider = Object.assign(document.createElement("input"), {type: "range", min: 0, max: sizes[i] - 1});
        slider.value = first[i];
        slider.addEventListener("input", () => { tell(); show(); });
        const tell = () => {
            value.textContent = data.values[i][slider.value];
            slider.setAttribute("aria-valuetext", value.textContent);
        };
        const step = (text, by) => {
            const button = Object.assign(document.createElement("button"), {type: "button", textContent: text});
            button.setAttribute("aria-label", `${name}: ${by < 0 ? "one back" : "one on"}`);
            button.addEventListener("click", () => {
                slider.value = Number(slider.value) + by;
                slider.dispatchEvent(new Event("input"));
            });
            return button;
        };
        label.append(name, slider);
        const row = document.createElement("div");
        row.append(label, step("\u2039", -1), step("\u203a", 1), value);
        panel.append(row);
        sliders.push(slider);
        tell();
    });
    box.prepend(panel);
    show();
}
document.addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll(".frames-picture svg").forEach(keepReadable);
    document.querySelectorAll(".frames").forEach(makeSliders);
});
