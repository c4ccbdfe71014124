// Comes with the pages of a run that is being watched: asks the own server for the newest mark, and loads the page again when there is one.
(() => {
  const live = document.getElementById("live");
  if (live === null) return;
  async function look() {
    let wait = 2000;
    try {
      const answer = await fetch("mark", { cache: "no-store" });
      if (answer.ok && (await answer.text()) !== live.dataset.mark) { location.reload(); return; }
    } catch { wait = 10000; } // the server is gone; it may come back
    setTimeout(look, wait);
  }
  setTimeout(look, 2000);
})();
