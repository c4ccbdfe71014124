"use strict";
// The browser of transcripts. Everything that it shows stands in the page already: this only hides, shows and marks.
(() => {
  const root = document.getElementById("transcripts");
  if (root === null) return;
  const items = [...root.querySelectorAll("#episodes li")];
  const episodes = [...root.querySelectorAll(".episode")];
  const told = document.getElementById("told");
  let current = 0;
  let filter = "";

  const shown = () => items.map((_, i) => i).filter((i) => !items[i].hidden);
  const wanted = (item) => filter === "" || item.dataset.flags.split(" ").includes(filter);

  function select(index, focus) {
    current = index;
    episodes.forEach((episode, i) => { episode.hidden = i !== index; });
    items.forEach((item, i) => {
      const link = item.querySelector("a");
      if (i === index) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current");
      if (i === index && focus) link.focus({ preventScroll: true });
    });
    const list = document.getElementById("episodes");
    const item = items[index];
    if (item.offsetTop < list.scrollTop + list.offsetTop) list.scrollTop = item.offsetTop - list.offsetTop;
    const below = item.offsetTop - list.offsetTop + item.offsetHeight - list.clientHeight;
    if (below > list.scrollTop) list.scrollTop = below;
    try { history.replaceState(null, "", "#" + episodes[index].id); } catch { /* a page in a frame without a history */ }
  }

  function apply(name) {
    filter = name;
    items.forEach((item) => { item.hidden = !wanted(item); });
    for (const button of root.querySelectorAll("[data-filter]")) button.setAttribute("aria-pressed", String(button.dataset.filter === name));
    const left = shown();
    told.textContent = left.length === 0 ? "No such episode." : left.length + " of " + items.length + " episodes";
    root.querySelector("#browser").hidden = left.length === 0;
    if (left.length > 0 && !left.includes(current)) select(left[0], false);
  }

  function move(by) {
    const left = shown();
    if (left.length === 0) return;
    const place = Math.min(left.length - 1, Math.max(0, left.indexOf(current) + by));
    select(left[place], true);
  }

  // A round, or null for all of them at once.
  function show(episode, round) {
    const last = Number(episode.dataset.last);
    episode.dataset.at = round === null ? "" : String(round);
    for (const mark of episode.querySelectorAll("svg [data-round]")) {
      const own = Number(mark.dataset.round);
      mark.toggleAttribute("hidden", round !== null && own > round);
      mark.classList.toggle("now", round !== null && own === round);
      mark.classList.toggle("past", round !== null && own < round);
    }
    const frames = [...episode.querySelectorAll("[data-frame]")].map((frame) => Number(frame.dataset.frame));
    const at = round === null ? null : Math.max(...frames.filter((own) => own <= round), frames[0] ?? 0);
    for (const frame of episode.querySelectorAll("[data-frame]")) frame.hidden = at !== null && Number(frame.dataset.frame) !== at;
    rows(episode);
    const row = episode.querySelector(`tbody tr[data-round="${round}"]`);
    const name = row === null ? String(round + 1) : row.dataset.name;
    episode.querySelector(".where").textContent = round === null ? "all rounds" : "round " + name + " · " + (round + 1) + " of " + (last + 1);
    episode.querySelector('[data-step="all"]').setAttribute("aria-pressed", String(round === null));
  }

  function rows(episode) {
    const round = episode.dataset.at ? Number(episode.dataset.at) : null;
    const pressed = episode.querySelector('[data-channel][aria-pressed="true"]');
    for (const row of episode.querySelectorAll("tbody tr")) {
      const other = pressed !== null && row.dataset.channel !== pressed.dataset.channel;
      row.hidden = other || (round !== null && Number(row.dataset.round) > round);
    }
  }

  function step(episode, by) {
    const last = Number(episode.dataset.last);
    const at = episode.dataset.at ? Number(episode.dataset.at) : null;
    if (at === null) show(episode, by > 0 ? 0 : last);
    else show(episode, Math.min(last, Math.max(0, at + by)));
  }

  root.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    const link = event.target.closest("#episodes a");
    if (link !== null) {
      event.preventDefault();
      select(items.indexOf(link.closest("li")), false);
    } else if (button === null) {
      return;
    } else if (button.dataset.filter !== undefined) {
      apply(button.dataset.filter);
    } else if (button.dataset.step === "all") {
      show(button.closest(".episode"), null);
    } else if (button.dataset.step !== undefined) {
      step(button.closest(".episode"), Number(button.dataset.step));
    } else if (button.dataset.channel !== undefined) {
      const episode = button.closest(".episode");
      const on = button.getAttribute("aria-pressed") !== "true";
      for (const other of episode.querySelectorAll("button[data-channel]")) other.setAttribute("aria-pressed", "false");
      button.setAttribute("aria-pressed", String(on));
      rows(episode);
    }
  });

  root.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    const scrolls = event.target.closest(".wide") !== null;
    const left = shown();
    const actions = { ArrowDown: () => move(1), ArrowUp: () => move(-1) };
    if (!scrolls) {
      actions.ArrowRight = () => step(episodes[current], 1);
      actions.ArrowLeft = () => step(episodes[current], -1);
      actions.Home = () => { if (left.length > 0) select(left[0], true); };
      actions.End = () => { if (left.length > 0) select(left[left.length - 1], true); };
    }
    if (!Object.hasOwn(actions, event.key)) return;
    event.preventDefault();
    actions[event.key]();
  });

  root.querySelector("#browser").classList.add("live");
  for (const hidden of root.querySelectorAll("#filters, #keys, .steps")) hidden.hidden = false;
  const named = episodes.findIndex((episode) => "#" + episode.id === location.hash);
  const first = named >= 0 ? named : 0;
  const before = history.state;
  select(first, false);
  if (named < 0) { try { history.replaceState(before, "", location.pathname + location.search); } catch { /* as above */ } }
})();
