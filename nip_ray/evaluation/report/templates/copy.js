"use strict";
// Buttons that copy the text before them: it is selected, and put on the clipboard where the browser lets a page do that.
for (const button of document.querySelectorAll("[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const text = button.previousElementSibling;
    getSelection().selectAllChildren(text);
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "copied";
    } catch {
      button.textContent = "selected";
    }
  });
}
