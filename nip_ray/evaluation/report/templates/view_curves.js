"use strict";
// Curves of several runs over one another. Everything is made of elements and text nodes: no text of a run becomes markup.
const Curves = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const WIDE = 480, HIGH = 300, LEFT = 70, RIGHT = 14, TOP = 10, BOTTOM = 50;
  const NAMED = 12; // runs that the box at the pointer names
  const CLEAR = 6; // runs whose values are drawn behind their smoothed curves
  let lit = null;

  function element(name, attributes = {}, text) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // The colours of the style sheet, then the same dashed, then dotted.
  const look = (slot) => `k${slot % 8} dash${Math.floor(slot / 8) % 3}`;

  function swatch(slot) {
    const made = element("svg", { class: "swatch", width: 24, height: 8, viewBox: "0 0 24 8", "aria-hidden": "true" });
    made.append(element("line", { class: look(slot), x1: 1, y1: 4, x2: 23, y2: 4 }));
    return made;
  }

  function number(value) {
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2).replace(/\.?0+e/, "e");
    return value.toLocaleString("en", { maximumSignificantDigits: size >= 1000 ? 7 : 4 });
  }

  function ticks(low, high, wanted, whole) {
    const rough = (high - low) / wanted, ten = 10 ** Math.floor(Math.log10(rough));
    let step = [1, 2, 2.5, 5, 10].map((part) => part * ten).find((one) => one >= rough * 0.999);
    if (whole) step = Math.max(1, Math.round(step));
    const made = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) made.push(i * step);
    return made;
  }

  function smoothed(values) {
    const half = Math.max(1, Math.round(values.length / 40));
    return values.map((_, i) => {
      const near = values.slice(Math.max(0, i - half), i + half + 1);
      return near.reduce((sum, one) => sum + one, 0) / near.length;
    });
  }

  function range(lists) {
    let low = Infinity, high = -Infinity;
    for (const list of lists) for (const one of list) { low = Math.min(low, one); high = Math.max(high, one); }
    return [low, high];
  }

  function marked(root) {
    for (const line of root.querySelectorAll("[data-slot]")) {
      line.classList.toggle("lit", lit !== null && line.dataset.slot === String(lit));
      line.classList.toggle("dim", lit !== null && line.dataset.slot !== String(lit) && line.closest("svg.chart") !== null);
    }
  }

  // The run of this slot stands out, or none does.
  function light(slot) {
    if (lit === slot) return;
    lit = slot;
    marked(document);
  }

  // metric: its key. series: [{ slot, label, points: [[x ...], [y ...]] }].
  function draw(metric, series, { over, smooth, remove }) {
    const figure = document.createElement("figure");
    figure.className = "card plot";
    figure.dataset.metric = metric;
    const caption = document.createElement("figcaption");
    const name = document.createElement("span");
    name.textContent = metric;
    const away = document.createElement("button");
    away.type = "button";
    away.textContent = "×";
    away.setAttribute("aria-label", `Remove ${metric}`);
    away.addEventListener("click", remove);
    caption.append(name, away);
    const svg = element("svg", {
      class: "chart", viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": `${metric} over ${over}, ${series.length} runs`,
    });
    figure.append(caption, svg);
    if (series.length === 0) {
      svg.append(element("text", { x: WIDE / 2, y: HIGH / 2, "text-anchor": "middle" }, "none of the picked runs has it yet"));
      return figure;
    }
    let [x0, x1] = range(series.map((one) => one.points[0]));
    let [y0, y1] = range(series.map((one) => one.points[1]));
    if (x0 === x1) { x0 -= 1; x1 += 1; }
    const pad = y0 === y1 ? Math.abs(y0) * 0.1 || 0.5 : (y1 - y0) * 0.06;
    const share = y0 >= 0 && y1 <= 1;
    y0 -= pad; y1 += pad;
    if (share) { y0 = Math.max(y0, -0.03); y1 = Math.min(y1, 1.03); }
    const X = (x) => LEFT + (x - x0) / (x1 - x0) * (WIDE - LEFT - RIGHT);
    const Y = (y) => HIGH - BOTTOM - (y - y0) / (y1 - y0) * (HIGH - TOP - BOTTOM);
    for (const y of ticks(y0, y1, 5, false)) {
      svg.append(element("line", { class: "grid", x1: LEFT, x2: WIDE - RIGHT, y1: Y(y), y2: Y(y) }));
      svg.append(element("text", { x: LEFT - 8, y: Y(y) + 5, "text-anchor": "end" }, number(Number(y.toPrecision(10)))));
    }
    for (const x of ticks(x0, x1, 5, over === "iteration")) {
      svg.append(element("text", { x: X(x), y: HIGH - BOTTOM + 22, "text-anchor": "middle" }, number(Number(x.toPrecision(10)))));
    }
    svg.append(element("text", { class: "axis", x: (LEFT + WIDE - RIGHT) / 2, y: HIGH - 8, "text-anchor": "middle" }, over));
    const unit = metric.split("/").at(-1).split("=")[0].replaceAll("_", " ").slice(0, 40), middle = (TOP + HIGH - BOTTOM) / 2;
    svg.append(element("text", { class: "axis", x: 15, y: middle, "text-anchor": "middle", transform: `rotate(-90 15 ${middle})` }, unit));
    const path = (xs, ys) => xs.map((x, i) => `${i ? "L" : "M"}${X(x).toFixed(1)} ${Y(ys[i]).toFixed(1)}`).join("");
    for (const { slot, points: [xs, ys] } of series) {
      const soft = smooth && xs.length > 4;
      if (soft && series.length <= CLEAR) svg.append(element("path", { class: `raw ${look(slot)}`, "data-slot": slot, d: path(xs, ys) }));
      svg.append(element("path", { class: `line ${look(slot)}`, "data-slot": slot, d: path(xs, soft ? smoothed(ys) : ys) }));
      if (xs.length <= 25 && !soft) {
        for (const [i, x] of xs.entries()) {
          svg.append(element("circle", { class: `spot k${slot % 8}`, "data-slot": slot, cx: X(x), cy: Y(ys[i]), r: xs.length === 1 ? 4 : 2.5 }));
        }
      }
    }
    if (lit !== null) marked(svg);
    point(figure, svg, series, { X, Y, x0, x1, over });
    return figure;
  }

  const nearest = (xs, x) => xs.reduce((best, one, i) => Math.abs(one - x) < Math.abs(xs[best] - x) ? i : best, 0);

  // What the pointer is at: a line, and a box with the runs' values, the largest first; the run that is nearest stands out.
  function point(figure, svg, series, { X, Y, x0, x1, over }) {
    const cursor = element("line", { class: "cursor", y1: TOP, y2: HIGH - BOTTOM, visibility: "hidden" });
    svg.append(cursor);
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    figure.append(tip);
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect(), scale = WIDE / box.width;
      const at = x0 + ((event.clientX - box.left) * scale - LEFT) / (WIDE - LEFT - RIGHT) * (x1 - x0);
      const all = series.map((one) => { const i = nearest(one.points[0], at); return { ...one, x: one.points[0][i], y: one.points[1][i] }; });
      const x = all[nearest(all.map((one) => one.x), at)].x;
      const here = all.filter((one) => Math.abs(X(one.x) - X(x)) < 12).sort((a, b) => b.y - a.y);
      const high = (event.clientY - box.top) * scale;
      const close = here[nearest(here.map((one) => Y(one.y)), high)];
      light(Math.abs(Y(close.y) - high) < 24 ? close.slot : null);
      cursor.setAttribute("x1", X(x));
      cursor.setAttribute("x2", X(x));
      cursor.setAttribute("visibility", "visible");
      const named = here.slice(0, NAMED);
      if (!named.includes(close)) named.push(close);
      const lines = named.map((one) => {
        const line = document.createElement("div"), what = document.createElement("span"), value = document.createElement("b");
        what.className = one === close ? "what near" : "what";
        what.textContent = one.label;
        value.textContent = number(one.y);
        line.append(swatch(one.slot), what, value);
        return line;
      });
      const head = document.createElement("div");
      head.className = "soft";
      head.textContent = `${over} ${number(x)}${here.length > NAMED ? `, the largest ${NAMED} of ${here.length}` : ""}`;
      tip.replaceChildren(head, ...lines);
      tip.hidden = false;
      const right = event.clientX - box.left < box.width / 2;
      tip.style.left = right ? `${X(x) / scale + 24}px` : "auto";
      tip.style.right = right ? "auto" : `${box.width - X(x) / scale + 24}px`;
      tip.style.top = `${TOP + 36}px`;
    });
    svg.addEventListener("pointerleave", () => { tip.hidden = true; cursor.setAttribute("visibility", "hidden"); light(null); });
  }

  return { draw, swatch, light, number };
})();
