// The page over the runs of a folder. It asks its own server for everything, and makes elements and text nodes of it, never markup; the
// transcripts alone come as markup, which the server has made of escaped texts.
(() => {
  const $ = (id) => document.getElementById(id);
  const main = document.querySelector("main.view");
  const MAX_CURVES = Number(main.dataset.curves), MAX_BESIDE = Number(main.dataset.beside);
  const PICKED_AT_FIRST = 6, PLOTS_AT_FIRST = 3;
  const asked = new URLSearchParams(location.hash.slice(1));
  const chosen = {
    text: asked.get("text") ?? "", state: asked.get("state") ?? "", task: asked.get("task") ?? "",
    key: asked.get("key") ?? "", value: asked.get("value") ?? "", sort: asked.get("sort") ?? "",
    x: asked.get("x") ?? "", smooth: asked.get("smooth") ?? "", instance: asked.get("instance") ?? "", file: asked.get("file") ?? "",
  };
  const picked = new Map(asked.getAll("run").slice(0, MAX_CURVES).map((place, slot) => [place, slot]));
  let besides = asked.getAll("beside");
  let metrics = asked.getAll("metric");
  let runs = [], settings = {}, mark = "", settingsMark = "", fresh = !asked.has("run"), heard = Date.now();

  const made = (name, text, kind) => {
    const one = document.createElement(name);
    if (text !== undefined) one.textContent = text;
    if (kind) one.className = kind;
    return one;
  };

  function remember() {
    const said = new URLSearchParams();
    for (const [key, value] of Object.entries(chosen)) if (value) said.set(key, value);
    for (const place of picked.keys()) said.append("run", place);
    for (const place of besides) said.append("beside", place);
    for (const metric of metrics) said.append("metric", metric);
    try { history.replaceState(null, "", `#${said}`); } catch { /* a page in a frame without a history */ }
  }

  function ago(changed) {
    const seconds = Math.max(0, Date.now() / 1000 - changed), minutes = Math.round(seconds / 60);
    if (seconds < 90) return `${Math.round(seconds)} s`;
    if (minutes < 90) return `${minutes} min`;
    return minutes < 2880 ? `${Math.round(minutes / 60)} h` : `${Math.round(minutes / 1440)} days`;
  }

  // -------------------------------------------------------------------------------------------------------- filters

  function fits(run) {
    if (chosen.state && run.state !== chosen.state || chosen.task && run.task !== chosen.task) return false;
    const own = settings[run.place] ?? {};
    if (chosen.key && chosen.value && (own[chosen.key] ?? "") !== chosen.value) return false;
    const texts = `${run.label} ${run.name} ${run.about} ${run.state} ${run.metric} ${run.note}`.toLowerCase();
    const known = { seed: run.seed, "scenario.name": run.task, "protocol.name": run.protocol, "algorithm.name": run.algorithm, ...own };
    return chosen.text.toLowerCase().split(/\s+/).filter(Boolean).every((word) => {
      const [key, value] = word.split("=", 2);
      if (value === undefined) return texts.includes(word);
      return Object.entries(known).some(([name, found]) =>
        (name.toLowerCase() === key || name.toLowerCase().endsWith(`.${key}`)) && (value === "" || found.toLowerCase() === value));
    });
  }

  const COLUMNS = [
    ["label", "run", (run) => run.label], ["about", "task", (run) => run.about], ["key", "", (run) => (settings[run.place] ?? {})[chosen.key]],
    ["state", "state", (run) => run.state], ["done", "iteration", (run) => run.total ? run.done / run.total : run.done],
    ["value", "value", (run) => run.value], ["metric", "metric", (run) => run.metric], ["changed", "age", (run) => -run.changed],
  ];

  function shown() {
    const left = runs.filter(fits);
    const down = chosen.sort.startsWith("-"), column = COLUMNS.find(([name]) => name === chosen.sort.replace("-", ""));
    if (!column) return left;
    const rank = (a, b) => {
      const [x, y] = [column[2](a), column[2](b)];
      if (x == null || y == null) return (x == null) - (y == null);
      return (down ? -1 : 1) * (typeof x === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true }));
    };
    return left.sort(rank);
  }

  function options(select, first, values, value) {
    const wanted = [["", first], ...values.map((one) => [one, one])];
    if (value && !values.includes(value)) wanted.push([value, value]);
    select.replaceChildren(...wanted.map(([key, text]) => { const one = made("option", text); one.value = key; return one; }));
    select.value = value;
  }

  function filters() {
    const sorted = (values) => [...new Set(values)].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    options($("task"), "any", sorted(runs.map((run) => run.task).filter(Boolean)), chosen.task);
    options($("key"), "key …", sorted(Object.values(settings).flatMap(Object.keys)), chosen.key);
    const values = sorted(Object.values(settings).map((own) => own[chosen.key]).filter((value) => value !== undefined));
    options($("value"), "any value", values, chosen.value);
    $("value").hidden = !chosen.key;
    for (const button of document.querySelectorAll("[data-state]")) {
      const state = button.dataset.state, count = runs.filter((run) => run.state === state).length;
      button.textContent = state === "" ? `all ${runs.length}` : `${state} ${count}`;
      button.hidden = state !== "" && count === 0 && chosen.state !== state;
      button.setAttribute("aria-pressed", String(state === chosen.state));
    }
    if ($("text").value !== chosen.text) $("text").value = chosen.text;
    $("x").value = chosen.x;
    $("smooth").checked = chosen.smooth !== "";
  }

  // ---------------------------------------------------------------------------------------------------------- table

  function head() {
    const cells = COLUMNS.filter(([name]) => name !== "key" || chosen.key).map(([name, title]) => {
      const cell = made("th", undefined, ["done", "value", "changed"].includes(name) ? "n" : ""), button = made("button");
      const own = chosen.sort.replace("-", "") === name, down = chosen.sort.startsWith("-");
      cell.scope = "col";
      button.type = "button";
      button.dataset.sort = name;
      button.textContent = `${name === "key" ? chosen.key.split(".").slice(-2).join(".") : title}${own ? (down ? " ↓" : " ↑") : ""}`;
      cell.setAttribute("aria-sort", own ? (down ? "descending" : "ascending") : "none");
      cell.append(button);
      return cell;
    });
    const pick = made("td");
    $("head").replaceChildren(pick, ...cells);
  }

  function progress(run) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const part = (kind, width) => {
      const rect = document.createElementNS(svg.namespaceURI, "rect");
      for (const [key, value] of Object.entries({ class: kind, width, height: 4, rx: 2 })) rect.setAttribute(key, value);
      return rect;
    };
    svg.setAttribute("class", "done");
    svg.setAttribute("viewBox", "0 0 100 4");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    svg.append(part("all", 100), part(`part ${run.state}`, Math.min(100, 100 * run.done / run.total)));
    return svg;
  }

  function row(run) {
    const line = made("tr"), tick = made("input"), choose = made("td", undefined, "choose"), slot = picked.get(run.place);
    tick.type = "checkbox";
    tick.checked = slot !== undefined;
    tick.dataset.place = run.place;
    tick.setAttribute("aria-label", `Pick ${run.label}`);
    choose.append(tick);
    if (slot !== undefined) { choose.append(Curves.swatch(slot)); line.dataset.slot = slot; }
    const name = made("th"), link = made("a", run.label);
    name.scope = "row";
    link.href = `run/${encodeURIComponent(run.place)}/`;
    link.target = "_blank";
    link.rel = "noopener";
    link.title = "Open its report";
    name.append(link);
    const state = made("td"), said = made("span", run.state, `state ${run.state}`);
    state.append(said);
    if (run.note) { state.append(made("span", run.note, "interval")); state.querySelector(".interval").title = run.note; }
    const done = made("td", undefined, "n");
    done.append(run.done.toLocaleString("en"));
    if (run.total) done.append(made("span", ` of ${run.total.toLocaleString("en")}`, "of"), progress(run));
    const value = made("td", run.value === null ? "–" : Curves.number(run.value), "n");
    const age = made("td", ago(run.changed), "n");
    age.dataset.changed = run.changed;
    const key = chosen.key ? [made("td", (settings[run.place] ?? {})[chosen.key] ?? "–", "key")] : [];
    line.append(choose, name, made("td", run.about, "about"), ...key, state, done, value, made("td", run.metric, "metric"), age);
    return line;
  }

  function table() {
    const focus = document.activeElement?.dataset?.place, sort = document.activeElement?.dataset?.sort, left = shown();
    head();
    const empty = made("tr"), told = made("td", runs.length ? "No run fits these filters." : "No runs here yet. They appear as they begin.", "empty");
    told.colSpan = 9;
    empty.append(told);
    $("rows").replaceChildren(...(left.length ? left.map(row) : [empty]));
    if (focus !== undefined) [...document.querySelectorAll("[data-place]")].find((one) => one.dataset.place === focus)?.focus({ preventScroll: true });
    if (sort !== undefined) document.querySelector(`[data-sort="${sort}"]`)?.focus({ preventScroll: true });
    const running = runs.filter((run) => run.state === "running").length;
    $("counts").textContent = `${runs.length} run${runs.length === 1 ? "" : "s"}${running ? `, ${running} running` : ""}${left.length < runs.length ? `, ${left.length} shown` : ""}`;
    const full = picked.size >= MAX_CURVES ? " (as many as can be told apart)" : "";
    $("picked").textContent = `${picked.size} picked${full}`;
  }

  // --------------------------------------------------------------------------------------------------------- picking

  function slot() {
    const taken = new Set(picked.values());
    for (let free = 0; ; free++) if (!taken.has(free)) return free;
  }

  function pick(place, on) {
    if (!on) picked.delete(place);
    else if (!picked.has(place) && picked.size < MAX_CURVES) picked.set(place, slot());
  }

  // Those with the task of the first one that is not the only one of its task; else all.
  function alike(some) {
    const task = some.find((one) => some.filter((other) => other.task === one.task).length > 1)?.task;
    return task === undefined ? some : some.filter((one) => one.task === task);
  }

  const label = (place) => runs.find((run) => run.place === place)?.label ?? place;
  const query = (places, more = []) => new URLSearchParams([...places.map((place) => ["run", place]), ...more]).toString();

  async function ask(path) {
    const answer = await fetch(path, { cache: "no-store" });
    if (!answer.ok) throw new Error((await answer.text()).slice(0, 300));
    return answer;
  }

  // ---------------------------------------------------------------------------------------------------------- curves

  function first(keys) {
    const heads = [...picked.keys()].map((place) => runs.find((run) => run.place === place)?.metric).filter(Boolean);
    const returns = keys.filter((key) => /^train\/[^/]+\/return$/.test(key) || /\/return_mean$/.test(key));
    return [...new Set([...heads, "train/verifier/accuracy", ...returns])].filter((key) => keys.includes(key)).slice(0, PLOTS_AT_FIRST);
  }

  let turn = 0, keys = [];
  async function curves() {
    const own = ++turn;
    if (metrics.length === 0 && picked.size && keys.length === 0) keys = (await (await ask(`curves?${query([...picked.keys()])}`)).json()).keys;
    const wanted = metrics.length ? metrics : first(keys);
    const found = await (await ask(`curves?${query([...picked.keys()], [["x", chosen.x], ...wanted.map((metric) => ["metric", metric])])}`)).json();
    if (own !== turn) return;
    keys = found.keys;
    $("metrics").replaceChildren(...keys.filter((key) => !wanted.includes(key)).map((key) => { const one = made("option"); one.value = key; return one; }));
    const over = chosen.x === "minutes" ? "minutes of training" : "iteration";
    const plots = Object.entries(found.curves).map(([metric, lines]) => {
      const series = [...picked].filter(([place]) => lines[place]).map(([place, slot]) => ({ slot, label: label(place), points: lines[place] }));
      const remove = () => { metrics = wanted.filter((one) => one !== metric); if (!metrics.length) keys = []; changed(); };
      return Curves.draw(metric, series, { over, smooth: chosen.smooth !== "", remove });
    });
    $("curves").replaceChildren(...plots);
    say(plots.length ? "" : picked.size ? "These runs have no metrics yet." : "Pick runs in the table to draw their curves.");
  }

  function say(text) {
    $("no-curves").textContent = text;
    $("no-curves").hidden = text === "";
  }

  function legend() {
    $("legend").replaceChildren(...[...picked].map(([place, slot]) => {
      const item = made("li"), away = made("button", "×");
      away.type = "button";
      away.dataset.away = place;
      away.setAttribute("aria-label", `Drop ${label(place)}`);
      item.dataset.slot = slot;
      item.append(Curves.swatch(slot), label(place), away);
      return item;
    }));
  }

  // ------------------------------------------------------------------------------------------------------ transcripts

  let reading = 0, read = "";
  async function episodes() {
    const own = ++reading, places = besides;
    $("beside").replaceChildren(...[...picked].map(([place, slot]) => {
      const button = made("button");
      button.type = "button";
      button.dataset.beside = place;
      button.setAttribute("aria-pressed", String(places.includes(place)));
      button.append(Curves.swatch(slot), label(place));
      return button;
    }));
    if (!places.length) { read = ""; $("episodes").replaceChildren(made("p", picked.size ? "None of the picked runs has transcripts yet." : "Pick runs to read what they said.", "soft")); return; }
    const text = await (await ask(`episodes?${query(places, [["instance", chosen.instance], ["file", chosen.file]])}`)).text();
    const colours = places.map((place) => picked.get(place)).join();
    if (own !== reading || read === colours + text) return; // the same as before: what a reader has marked stays marked
    read = colours + text;
    const scroll = $("episodes").querySelector(".list")?.scrollTop ?? 0;
    $("episodes").replaceChildren(...new DOMParser().parseFromString(text, "text/html").body.childNodes);
    for (const one of $("episodes").querySelectorAll("[data-column]")) one.replaceWith(Curves.swatch(picked.get(places[Number(one.dataset.column)])));
    const list = $("episodes").querySelector(".list");
    if (list !== null) list.scrollTop = scroll;
  }

  // ----------------------------------------------------------------------------------------------------- what happens

  const failed = (error) => { $("pulse").textContent = `could not be read: ${error.message}`; };

  function changed({ talk = false } = {}) {
    const before = besides.join("\n");
    besides = besides.filter((place) => picked.has(place));
    if (!besides.length) besides = alike([...picked.keys()].map((place) => runs.find((run) => run.place === place)).filter((run) => run?.talks)).slice(0, 2).map((run) => run.place);
    filters();
    table();
    legend();
    remember();
    curves().catch(failed);
    if (talk || before !== besides.join("\n") || $("beside").childElementCount !== picked.size) episodes().catch(failed);
  }

  function narrowed() { filters(); table(); remember(); }

  document.addEventListener("click", (event) => {
    const target = event.target.closest("button, a[data-instance]"), data = target?.dataset ?? {};
    if (data.state !== undefined) { chosen.state = data.state; narrowed(); }
    else if (data.sort !== undefined) { chosen.sort = chosen.sort === data.sort ? `-${data.sort}` : chosen.sort === `-${data.sort}` ? "" : data.sort; narrowed(); }
    else if (data.away !== undefined) { pick(data.away, false); changed(); }
    else if (data.instance !== undefined) { event.preventDefault(); chosen.instance = data.instance; remember(); episodes().catch(failed); }
    else if (data.beside !== undefined) {
      besides = besides.includes(data.beside) ? besides.filter((one) => one !== data.beside) : [...besides, data.beside].slice(-MAX_BESIDE);
      changed({ talk: true });
    } else if (target?.id === "pick") { for (const run of shown()) pick(run.place, true); changed(); }
    else if (target?.id === "clear") { picked.clear(); changed(); }
  });

  document.addEventListener("change", (event) => {
    const target = event.target;
    if (target.dataset.place !== undefined) { pick(target.dataset.place, target.checked); changed(); }
    else if (target.id === "task") { chosen.task = target.value; narrowed(); }
    else if (target.id === "key") { chosen.key = target.value; chosen.value = ""; narrowed(); }
    else if (target.id === "value") { chosen.value = target.value; narrowed(); }
    else if (target.id === "add") { if (target.value) say(`None of the picked runs has the metric ${target.value}.`); }
    else if (target.id === "x") { chosen.x = target.value; changed(); }
    else if (target.id === "smooth") { chosen.smooth = target.checked ? "1" : ""; changed(); }
    else if (target.id === "file") { chosen.file = target.value; remember(); episodes().catch(failed); }
  });

  $("text").addEventListener("input", () => { chosen.text = $("text").value; narrowed(); });
  $("add").addEventListener("input", () => {
    const metric = $("add").value;
    if (!keys.includes(metric)) return;
    metrics = [...(metrics.length ? metrics : first(keys)), metric].filter((one, i, all) => all.indexOf(one) === i);
    $("add").value = "";
    changed();
  });
  for (const [where, kind] of [["legend", "li"], ["rows", "tr"]]) {
    $(where).addEventListener("pointerover", (event) => { const slot = event.target.closest(kind)?.dataset.slot; Curves.light(slot === undefined ? null : Number(slot)); });
    $(where).addEventListener("pointerleave", () => Curves.light(null));
  }

  let waiting = false;
  function follow() {
    waiting = false;
    if (!metrics.length) keys = [];
    changed({ talk: true });
  }
  $("curves").addEventListener("pointerleave", () => { if (waiting) follow(); });

  async function look() {
    let wait = 2000;
    try {
      const answer = await ask(`runs?since=${mark}`);
      heard = Date.now();
      if (answer.status === 200) {
        const found = await answer.json();
        if (found.settings !== settingsMark) { settings = await (await ask("settings")).json(); settingsMark = found.settings; }
        const before = new Map(runs.map((run) => [run.place, run]));
        mark = found.mark;
        runs = found.runs;
        if (fresh && runs.length) { fresh = false; for (const run of alike(runs.filter((run) => run.metric)).slice(0, PICKED_AT_FIRST)) pick(run.place, true); }
        const moved = (place) => before.get(place)?.changed !== runs.find((run) => run.place === place)?.changed;
        const grown = [...picked.keys()].some(moved), first = before.size === 0;
        if (first) changed({ talk: true });
        else if (grown && $("curves").matches(":hover")) { waiting = true; narrowed(); } // not under the pointer that reads them
        else if (grown) follow();
        else narrowed();
      }
      for (const cell of document.querySelectorAll("[data-changed]")) cell.textContent = ago(Number(cell.dataset.changed));
      $("pulse").textContent = `up to date at ${new Date(heard).toLocaleTimeString("en-GB")}`;
    } catch (error) {
      wait = 5000;
      $("pulse").textContent = `no answer since ${new Date(heard).toLocaleTimeString("en-GB")}; is nip-ray view still running?`;
    }
    setTimeout(look, wait);
  }

  filters();
  look();
})();
